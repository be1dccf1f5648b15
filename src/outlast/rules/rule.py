"""The seam between what rules decide and those who carry it out, alone or slice by slice.

A rule turns n contributions into one update. It does so in three steps, so that the members of a training
run, each of whom holds a slice of all contributions, can do it together:

1. `survey(rows)`, per slice: what the rule has to know of the rows, a float64 matrix of about n by n (None
   if the rule looks at each coordinate by itself). Surveys of slices are added, in the order of the slices.
2. `plan(n, survey, weights)`: who counts, and how much. A pure function of n² numbers, the same bits for
   everyone.
3. `plan.apply(rows)`, per slice: one pass over the rows.

Calling a rule does just that, with one slice per tensor. So what a rule does in training and what it does
alone is the same code. Results depend on where slices begin and end within rounding only, and for the same
slices they are the same bits, whoever computes them.

Contributions that are not finite cannot be compared with others. Geometric rules set them aside, as faults
that have been found (f counts them); coordinate-wise rules rank NaN as an extreme value. Either way up to f
of them do no harm. Only the mean believes everybody.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, overload

import torch
from torch import Tensor

from outlast.errors import ConfigError
from outlast.rules.gram import Rows, gram, lengths
from outlast.rules.kernels import Kernel
from outlast.rules.networks import MOST_WIRES
from outlast.rules.plan import Plan
from outlast.rules.space import Cloud
from outlast.rules.updates import Updates

Weights = Sequence[float] | Tensor


@dataclass(frozen=True)
class Needs:
    """What a rule has to know beside the coordinates themselves."""

    gram: bool = False
    lengths: bool = False
    """Only how far each contribution is from the one landmark: a Gram matrix without its products will do."""
    origin: bool = False
    centre: bool = False

    @property
    def anything(self) -> bool:
        return self.gram or self.lengths

    def __or__(self, other: Needs) -> Needs:
        origin, centre = self.origin or other.origin, self.centre or other.centre
        lengths = self.lengths or other.lengths
        gram = self.gram or other.gram or (lengths and origin and centre)
        return Needs(gram=gram, lengths=lengths, origin=origin, centre=centre)


@dataclass(frozen=True)
class Decision:
    """Reduce these combinations of base points with this kernel."""

    mix: Tensor
    kernel: Kernel


class Rule(ABC):
    """How n contributions become one update. Rules are immutable, and compare by value."""

    @property
    def needs(self) -> Needs:
        return Needs()

    @property
    def believes_all(self) -> bool:
        """Whether one contribution that is not finite makes the result so."""
        return False

    @abstractmethod
    def tolerates(self, n: int) -> int:
        """How many of n contributions may be arbitrarily wrong. Raises ConfigError if n is too small."""

    @abstractmethod
    def decide(self, cloud: Cloud) -> Decision:
        """Who counts, and how much."""

    def __or__(self, then: object) -> NoReturn:
        raise ConfigError(
            f"{self} | {then}: a rule comes last, after pre-aggregations, as in `rules.NNM(f=1) | "
            "rules.TrimmedMean(f=1)`"
        )

    def survey(self, rows: Rows, centre: Tensor | None = None) -> Tensor | None:
        """What the rule needs to know of one slice; `centre` is the slice of the point that clipping starts
        from.
        """
        if not self.needs.anything:
            return None
        if not self.needs.gram:
            return lengths(rows, centre)
        return gram(rows, [None] * self.needs.origin + [centre] * self.needs.centre)

    def plan(
        self,
        n: int,
        survey: Tensor | None,
        weights: Weights | None = None,
        *,
        faults_found: int = 0,
        step: int = 0,
    ) -> Plan:
        """What to do, from the sum of all slices' surveys. A contribution of weight 0 takes no part.

        `faults_found` is how many of these were left out as faulty: they count among the f. `step` makes
        rules that draw at random draw anew, the same on every member.
        """
        checked = _checked_weights(weights, n)
        present = [k for k, weight in enumerate(checked.tolist()) if weight > 0]
        voters = len(present) + faults_found
        limit = self.tolerates(voters)
        base, lost, landmarks = None, faults_found, int(self.needs.origin) + int(self.needs.centre)
        if self.needs.anything:
            assert survey is not None and survey.shape == (n + landmarks, n + landmarks)
            finite = survey.diagonal().isfinite().tolist()
            if not all(finite[n:]):
                raise ConfigError("the centre is not finite. Start from another one, or from none")
            kept = [k for k in present if finite[k]]
            lost += len(present) - len(kept)
            present = kept
            chosen = [*present, *range(n, n + landmarks)]
            base = survey[chosen][:, chosen]
        if lost > limit:
            raise ConfigError(
                f"{lost} of {voters} contributions are not finite or known to be faulty, but {self} "
                f"withstands {limit}: choose a larger f, or leave them out"
            )
        count = len(present)
        decision = self.decide(
            Cloud(
                mix=torch.eye(count, count + landmarks, dtype=torch.float64),
                weights=checked[present],
                base=base,
                origin=count if self.needs.origin else None,
                centre=count + landmarks - 1 if self.needs.centre else None,
                lost=lost,
                step=step,
            )
        )
        # The origin is all zeros: it has done its work.
        columns = [*range(count)] + [count + landmarks - 1] * self.needs.centre
        sources = tuple(present) + (n,) * self.needs.centre
        return Plan(kernel=decision.kernel, mix=decision.mix[:, columns], sources=sources)

    @torch.no_grad()
    def __call__(
        self,
        updates: Any,
        weights: Weights | None = None,
        *,
        centre: Any = None,
        step: int = 0,
        out: Tensor | None = None,
    ) -> Any:
        """Aggregates a list of tensors or of state_dicts, or the rows of one tensor; gives back one such
        update.

        Tensors are on the CPU, of one floating-point dtype each. Whole numbers and booleans in state_dicts
        (counters) become their lower median, which is one of them. With `out`, contributions are tensors, and
        the result is written there: touching fresh memory can cost nearly as much as reading them.
        """
        if centre is not None and not self.needs.centre:
            raise ConfigError(f"{self} has no centre: leave out centre=")
        given = Updates.of(updates)
        centres = given.slices_of(centre)
        survey: Tensor | None = None
        for rows, middle in zip(given.slices, centres, strict=True):
            part = self.survey(rows, middle)
            survey = part if survey is None or part is None else survey + part
        plan = self.plan(given.count, survey, weights, step=step)
        places = given.places(out)
        results = [
            plan.apply(rows, middle, place)
            for rows, middle, place in zip(given.slices, centres, places, strict=True)
        ]
        # Who has set aside what is not finite need not look again.
        unseen = not self.believes_all and not self.needs.anything
        if unseen and not all(_is_finite(result) for result in results):
            raise ConfigError(
                f"the result is not finite: more contributions are not than {self} withstands "
                f"({self.tolerates(given.count)} of {given.count}). Choose a larger f, or leave them out"
            )
        return given.rebuilt(results, plan.sources)


class Stage(ABC):
    """A pre-aggregation: replaces contributions by others that are easier to aggregate. `stage | rule` is a
    rule.
    """

    @property
    def needs(self) -> Needs:
        return Needs()

    @abstractmethod
    def tolerates(self, n: int) -> int:
        """How many of n contributions may be arbitrarily wrong. Raises ConfigError if n is too small."""

    @abstractmethod
    def voters(self, n: int) -> int:
        """How many it leaves of n."""

    @abstractmethod
    def transform(self, cloud: Cloud) -> Cloud:
        """The new voters."""

    @overload
    def __or__(self, then: Rule) -> Chain: ...

    @overload
    def __or__(self, then: Stage | Stages) -> Stages: ...

    def __or__(self, then: Stage | Stages | Rule) -> Chain | Stages:
        return Stages((self,)) | then


@dataclass(frozen=True)
class Stages:
    """Several pre-aggregations in a row, waiting for a rule."""

    stages: tuple[Stage, ...]

    @overload
    def __or__(self, then: Rule) -> Chain: ...

    @overload
    def __or__(self, then: Stage | Stages) -> Stages: ...

    def __or__(self, then: Stage | Stages | Rule) -> Chain | Stages:
        if isinstance(then, Chain):
            return Chain((*self.stages, *then.stages), then.rule)
        if isinstance(then, Rule):
            return Chain(self.stages, then)
        if isinstance(then, Stages):
            return Stages((*self.stages, *then.stages))
        return Stages((*self.stages, then)) if isinstance(then, Stage) else NotImplemented


@dataclass(frozen=True)
class Chain(Rule):
    """Pre-aggregations, and the rule that what they make is given to."""

    stages: tuple[Stage, ...]
    rule: Rule

    @property
    def needs(self) -> Needs:
        needs = self.rule.needs
        for stage in self.stages:
            needs = needs | stage.needs
        return needs

    @property
    def believes_all(self) -> bool:
        return self.rule.believes_all and not self.needs.anything

    def tolerates(self, n: int) -> int:
        limits = []
        for stage in self.stages:
            limits.append(stage.tolerates(n))
            n = stage.voters(n)
        return min([*limits, self.rule.tolerates(n)])

    def decide(self, cloud: Cloud) -> Decision:
        for stage in self.stages:
            cloud = stage.transform(cloud)
        return self.rule.decide(cloud)

    def __str__(self) -> str:
        return " | ".join(str(part) for part in (*self.stages, self.rule))


def need(n: int, least: int, rule: object) -> None:
    """Raises unless there are enough contributions."""
    if n < least:
        raise ConfigError(
            f"{rule} needs at least {least} contributions, but there are {n}: choose a smaller f"
        )


def rankable(n: int, rule: object) -> None:
    """Raises if there are more contributions than a sorting network is built for."""
    if n > MOST_WIRES:
        raise ConfigError(
            f"{rule} ranks at most {MOST_WIRES} contributions, but there are {n}: average some of them "
            f"first, with rules.Bucketing(size={-(-n // MOST_WIRES)}) before it"
        )


def check_count(name: str, value: int, least: int) -> None:
    if type(value) is not int or value < least:
        raise ConfigError(f"{name}={value!r} does not work: it is a whole number, {least} or more")


def check_positive(name: str, value: float | None) -> None:
    if value is not None and not (isinstance(value, int | float) and 0 < value < float("inf")):
        raise ConfigError(f"{name}={value!r} does not work: it is a finite number above 0")


def _is_finite(result: Tensor) -> bool:
    # A sum is one pass without a copy, and finite unless a value is not, or all of them are enormous.
    return bool(result.sum().isfinite()) or bool(result.isfinite().all())


def _checked_weights(weights: Weights | None, n: int) -> Tensor:
    if weights is None:
        return torch.ones(n, dtype=torch.float64)
    try:
        checked = torch.as_tensor(weights, dtype=torch.float64).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(f"weights={weights!r} do not work: one number per contribution") from error
    if checked.shape != (n,):
        raise ConfigError(f"there are {n} contributions, but weights have the shape {tuple(checked.shape)}")
    if not (checked.isfinite().all() and (checked >= 0).all() and (checked > 0).any()):
        raise ConfigError(
            f"weights={checked.tolist()} do not work: finite, not negative, and not all of them 0"
        )
    # Only their ratios matter; so scaled, no sum of them overflows.
    return checked / checked.max()
