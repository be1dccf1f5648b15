"""What people are told when states differ: in what, on which replicas, and what may have done it.

The first time it is taken for a machine's doing, and a line in the log says where. If it comes again in a
way that no machine does (`protocol/repeating.py`), the job ends with the name of what differs, and with the
likely mistake in the script.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from outlast.protocol.repeating import PLAIN, differing, unpacked
from outlast.protocol.step_words import BLANK, Differ
from outlast.protocol.views import View
from outlast.state.entries import Key, in_words, name_of
from outlast.state.optimizer import parameters_in
from outlast.state.structure import buffers_of, parameters_of
from outlast.state.training import TrainingState

NAMED_AT_MOST = 3
_PARTS = ("buffers", "parameters", "extras", "modules", "optimizers")
"""In the order in which they are named: what is changed comes before what follows from it."""


class Report:
    """On one time that states differed."""

    def __init__(
        self, state: TrainingState, differ: Differ, *, keys: Mapping[int, Key], verified: bytes
    ) -> None:
        """`keys` are those of the entries of the own state, `verified` the digests of the one that members go
        back to."""
        self._state = state
        self._differ = differ
        buffers = {
            name_of(key, plain=False): key for key in (("buffers", (n,)) for n in buffers_of(state.model))
        }
        self._keys = {**buffers, **keys}
        self._verified = unpacked(verified)
        self._found = differing(differ.entries)
        self._names = sorted(self._found, key=self._rank)

    def astray(self, replica: int, times: int, step: int) -> str:
        """Why a learner ends that does not come to have the state of members."""
        return (
            f"replica {replica}: {times} times in a row it was given the state of the others, and had "
            f"another one after step {step}, which differs in {self.what or 'something unknown'}. Does the "
            "script do something else on this replica, or does a load_state_dict not restore what state_dict "
            "gave? If not, its machine computes wrongly"
        )

    @property
    def what(self) -> str:
        """The entries that differ, or nothing if they are not known."""
        named = [self._in_words(name) for name in self._names[:NAMED_AT_MOST]]
        more = len(self._names) - len(named)
        return _listed([*named, f"{more} more"] if more else named)

    def first(self, view: View) -> str:
        """What is said as long as it is taken for a machine's doing: who differs in what, and since when at
        the earliest."""
        differ = self._differ
        where = {m.replica: m.address for m in view.members}
        named = [f"replica {replica} (at {where.get(replica, '')})" for replica in differ.members]
        who = " and ".join(named) or "there is no majority, so nobody can be named"
        found = f" It is in {self.what}." if self._names else ""
        if any(name & PLAIN for name in self._names):
            found += " Such values hardly ever flip: does the script change them on one replica only?"
        if differ.buffers:
            return (
                "silent corruption: the buffers (such as BatchNorm's statistics) with which replicas begin "
                f"step {differ.step + 1} differ: {who}. It happened after step {differ.back_to}: all go back "
                f"to it, and what they have done since then is void and done again.{found}"
            )
        return (
            f"silent corruption: the states of replicas after step {differ.step} differ: {who}. It happened "
            f"in the steps {differ.back_to + 1} to {differ.step}, which are void: all go back to step "
            f"{differ.back_to} and do them again.{found}"
        )

    def ending(self, chief: int | None) -> str:
        """Why the job ends."""
        differ = self._differ
        what = f"the states of replicas after step {differ.step} differ"
        if differ.buffers:
            what = f"the buffers with which replicas begin step {differ.step + 1} differ"
        return (
            f"{what} again in the same place, though all went back to step {differ.back_to} and did the "
            f"steps once more: the script is the first suspect, and not a machine. {self._told()} "
            f"{self._question(self._doers(), chief)} (The body of a step has to do the same to the model, "
            "the optimizer and `state` on every replica.)"
        )

    @property
    def _members(self) -> list[int]:
        return sorted(self._differ.entries)

    def _told(self) -> str:
        if not self._names:
            return f"It is not known what differs{_on(self._differ.members)}."
        first, *others = self._names[:NAMED_AT_MOST]
        told = f"What differs is {self._in_words(first)}: {self._who(first)}."
        more = len(self._names) - 1 - len(others)
        rest = [self._in_words(name) for name in others] + ([f"{more} more"] if more else [])
        return f"{told} With it {'differ' if len(rest) > 1 else 'differs'} {_listed(rest)}." if rest else told

    def _who(self, name: int) -> str:
        digests = self._found[name]
        changed, unchanged = self._changed(name)
        since = f"since step {self._differ.back_to}"
        if len(changed) == 1 and unchanged:
            return f"only {_named(changed)} has changed it {since}"
        if len(unchanged) == 1 and changed:
            return f"only {_named(unchanged)} has not changed it {since}"
        odd = _minority(digests)
        if odd:
            return f"{_named(odd)} {'has' if len(odd) == 1 else 'have'} something else than the others"
        return f"{_named(list(digests))} do not have the same"

    def _doers(self) -> list[int]:
        """Who has done something that others have not, as far as that can be seen."""
        for name in self._names:
            changed, unchanged = self._changed(name)
            if unchanged and changed:
                return changed
        return list(self._differ.members)

    def _question(self, doers: Sequence[int], chief: int | None) -> str:
        # The one that is evicted is chief no more, and another is.
        moved = bool(doers) and bool(self._differ.earlier) and not set(doers) & set(self._differ.earlier)
        chiefs = "Is something done under `if job.chief` that belongs on every replica?"
        if chief in doers or moved:
            return chiefs
        if len(self._members) == 2 and not doers:
            return f"{chiefs} Or is data split or shuffled without a seed (`outlast.seed`)?"
        whom = f"on {_named(doers)} only" if doers else "on some replicas only"
        return (
            f"Does something happen {whom}, or depend on what differs between them: `job.replica`, a clock, "
            "a file, a random generator of the script's own, data split without a seed? If not, a "
            "machine computes wrongly all the time."
        )

    def _changed(self, name: int) -> tuple[list[int], list[int]]:
        """Who has another one than in the verified state, and who has not."""
        before = self._verified.get(name)
        if before is None or self._differ.back_to == BLANK:
            return [], []
        digests = self._found[name]
        changed = [replica for replica, digest in digests.items() if digest != before]
        return changed, [replica for replica in digests if replica not in changed]

    def _rank(self, name: int) -> tuple[bool, int, str]:
        key = self._keys.get(name)
        if key is None:
            return True, len(_PARTS), ""
        return not name & PLAIN, _PARTS.index(key[0]), repr(key[1])

    def _in_words(self, name: int) -> str:
        key = self._keys.get(name)
        if key is None:
            return "something that not all of them have"
        part, path = key
        names: Sequence[str] = ()
        if part == "optimizers" and path and path[0] in self._state.optimizers:
            known = {id(p): plain for plain, p in parameters_of(self._state.model).items()}
            optimizer = self._state.optimizers[str(path[0])]
            names = [known.get(id(parameter), "?") for parameter in parameters_in(optimizer)]
        return in_words(key, names, only_optimizer=len(self._state.optimizers) == 1)


def _minority(digests: Mapping[int, int | None]) -> list[int]:
    values = list(digests.values())
    for value in set(values):
        if 2 * values.count(value) > len(values):
            return [replica for replica, digest in digests.items() if digest != value]
    return []


def _on(members: Sequence[int]) -> str:
    return f" on {_named(members)}" if members else ""


def _named(replicas: Sequence[int]) -> str:
    return _listed([f"replica {replica}" for replica in replicas])


def _listed(names: Sequence[str]) -> str:
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"
