"""A replica's whole training state: captured without copying it, and loaded all or not at all.

`capture` gives an image and references to the live tensors. Whoever sends or writes them reads them before
the next step changes them, or copies them first; which of the two is not decided here.

`load` makes a replica's model, optimizers and extras those of the image. Parameters and buffers are written
in place, so everything that refers to them (optimizers, compiled graphs, gradient buckets) stays right.
Whatever can be wrong is looked for before the first change: the two programs are compared by structure, then
the content itself is checked. What is left to fail is the user's own `load_state_dict`, so extras come first,
and the weights stay as they were if one of them refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol, overload

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from outlast.errors import ConfigError, ProtocolError
from outlast.state.contents import Image
from outlast.state.image import describe
from outlast.state.nodes import DictNode, Node, encode
from outlast.state.optimizer import capture_optimizer, parameters_in, plan_optimizer_load
from outlast.state.parts import WEIGHTS, holds_weights_only, parts_of
from outlast.state.structure import (
    VERSION,
    Structure,
    buffers_of,
    constants_of,
    decode_structure,
    differences,
    encode_structure,
    optimizer_shape,
    parameters_of,
    plain_name,
    shape_of,
)
from outlast.state.tree import flatten, unflatten
from outlast.state.weights import check_weights, plan_weights

UNFIT = "This replica's program does not fit the training state that it is to load. "
SAME_FOR_ALL = " Start every replica with the same script and the same settings."


class Stateful(Protocol):
    """What an extra must be able to do: schedulers, samplers, scalers and torch's own modules can."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state_dict: Any) -> Any: ...


class TrainingState:
    """Everything that a joiner needs to go on where the others are."""

    def __init__(
        self,
        model: Module,
        optimizers: Mapping[str, Optimizer],
        extras: Mapping[str, Stateful] | None = None,
    ) -> None:
        self.model = model
        # Sorted, so that the order in which a script names them is not part of the image.
        self.optimizers = dict(sorted(optimizers.items()))
        self.extras = dict(sorted((extras or {}).items()))
        # What trains is part of the program as it was at join; freezing something later is training.
        self._trains = {name: parameter.requires_grad for name, parameter in parameters_of(model).items()}
        self._constants = {key: list[dict[str, str]]() for key in self.optimizers}
        self._refuse_unfit_parts()
        # For the sake of the errors: what cannot be captured is found at join, not at the first snapshot.
        self.capture()
        self._refuse_expanded_tensors()

    def capture(self, overrides: Mapping[int, Tensor] | None = None) -> tuple[Image, list[Tensor]]:
        """The image of the state as it is now, and its tensors, which are live.

        `overrides` maps the `id` of a live tensor to one that is captured in its place: the buffers that a
        step began with, say, while the step is changing them.
        """
        tensors: list[Tensor] = []
        names: list[str] = []
        nodes: list[tuple[Node, Node]] = []
        for part, (root, value) in self._contents().items():
            flat = flatten(value, root, first_index=len(tensors))
            nodes.append((part, flat.plain))
            tensors += flat.tensors
            names += flat.paths
        if overrides:
            tensors = [_overridden(overrides, name, t) for name, t in zip(names, tensors, strict=True)]
        plain = encode(DictNode("dict", nodes))
        return describe(names, tensors, plain, self.structure()), tensors

    def lasting(self, overrides: Mapping[int, Tensor]) -> set[int]:
        """By `id`, the tensors of a capture that change in nothing but the script's update: parameters and
        optimizer state, and the overrides, which are copies."""
        found = {id(parameter) for parameter in self.model.parameters()}
        found |= {id(tensor) for tensor in overrides.values()}
        for optimizer in self.optimizers.values():
            for state in optimizer.state.values():
                found |= {id(value) for value in state.values() if isinstance(value, Tensor)}
        return found

    def structure(self) -> bytes:
        """What a program must have in common with this one to load its state, as bytes to compare."""
        return encode_structure(self._structure())

    def check(self, image: Image, changed: Collection[str] = ()) -> None:
        """Raises ConfigError if the image comes from a program that differs from this one; says in what. The
        optimizers' settings that are named in `changed` may differ."""
        if holds_weights_only(image):
            check_weights(self.model, image)
            return
        found = differences(decode_structure(image.structure), self._structure(), changed)
        if found:
            raise ConfigError(UNFIT + " ".join(found) + SAME_FOR_ALL)

    def load(self, image: Image, tensors: Sequence[Tensor], *, changed: Collection[str] = ()) -> None:
        """Become the state of the image. The tensors are copied: they may go away afterwards.

        If the image holds weights alone, only the model changes; optimizers and extras stay as they are.
        """
        self.check(image, changed)
        _check_tensors(image, tensors)
        parts = parts_of(image.plain)
        if WEIGHTS in parts:
            _write(plan_weights(self.model, image, tensors))
            return
        own = _Clones(tensors)
        writes = [
            *_writes("parameters", parameters_of(self.model), unflatten(parts["parameters"], tensors)),
            *_writes("buffers", buffers_of(self.model), unflatten(parts["buffers"], tensors)),
        ]
        module_states = _keyed(unflatten(parts["modules"], own), _modules_with_state(self.model), "modules")
        extra_states = _keyed(unflatten(parts["extras"], own), self.extras, "extras")
        optimizer_states = _keyed(unflatten(parts["optimizers"], own), self.optimizers, "optimizers")
        plans = [
            plan_optimizer_load(self.optimizers[key], saved, key) for key, saved in optimizer_states.items()
        ]

        # A scheduler may set learning rates when it is loaded; the optimizers' own come after that, and stay.
        for key, saved in extra_states.items():
            _hand_over(f"Extra {key!r}", self.extras[key].load_state_dict, saved)
        modules = _modules_with_state(self.model)
        for key, saved in module_states.items():
            _hand_over(f"Module {key!r}", modules[key].set_extra_state, saved)
        _write(writes)
        with torch.no_grad():
            for load_optimizer in plans:
                load_optimizer()

    def _contents(self) -> dict[str, tuple[str, dict[str, Any]]]:
        """The parts of the state, and what each is called in messages to the user."""
        modules = _modules_with_state(self.model)
        return {
            "parameters": ("model", dict(parameters_of(self.model))),
            "buffers": ("model", dict(buffers_of(self.model))),
            "modules": ("model", {key: module.get_extra_state() for key, module in modules.items()}),
            "optimizers": ("optimizers", {k: capture_optimizer(o, k) for k, o in self.optimizers.items()}),
            "extras": ("state", {key: extra.state_dict() for key, extra in self.extras.items()}),
        }

    def _structure(self) -> Structure:
        parameters = parameters_of(self.model)
        names = {id(parameter): name for name, parameter in parameters.items()}
        for key, optimizer in self.optimizers.items():
            # Constants are noted when a group is first seen: later on, a script may have scheduled them.
            known = self._constants[key]
            known += [constants_of(group) for group in optimizer.param_groups[len(known) :]]
            _refuse_strangers(key, optimizer, names)
        return Structure(
            version=VERSION,
            parameters=tuple(
                shape_of(name, parameter, trains=self._trains.get(name))
                for name, parameter in parameters.items()
            ),
            buffers=tuple(shape_of(name, buffer) for name, buffer in buffers_of(self.model).items()),
            optimizers=tuple(
                optimizer_shape(key, optimizer, names, self._constants[key])
                for key, optimizer in self.optimizers.items()
            ),
            extras={key: type(extra).__qualname__ for key, extra in self.extras.items()},
        )

    def _refuse_unfit_parts(self) -> None:
        for key, optimizer in self.optimizers.items():
            if not isinstance(optimizer, Optimizer):
                raise ConfigError(
                    f"Optimizer {key!r} is a {_kind(optimizer)}, not a torch.optim.Optimizer. Hand over the "
                    "optimizer itself; what wraps it can be handed over as an extra."
                )
        for key, extra in self.extras.items():
            for method in ("state_dict", "load_state_dict"):
                if isinstance(extra, type) or not callable(getattr(extra, method, None)):
                    raise ConfigError(
                        f"Extra {key!r} is a {_kind(extra)} without a method {method}. Give it state_dict() "
                        "and load_state_dict(), or leave it out if it does not change during training."
                    )

    def _refuse_expanded_tensors(self) -> None:
        for name, tensor in (*parameters_of(self.model).items(), *buffers_of(self.model).items()):
            if any(
                stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
            ):
                raise ConfigError(
                    f"model[{name!r}] is an expanded tensor, whose elements share their memory, so a state "
                    "cannot be loaded into it. Register a .clone() of it."
                )


class _Clones(Sequence[Tensor]):
    """Tensors of an image, copied when they are taken: those that become somebody's own."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = tensors

    def __len__(self) -> int:
        return len(self._tensors)

    @overload
    def __getitem__(self, index: int) -> Tensor: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Tensor]: ...

    def __getitem__(self, index: int | slice) -> Tensor | Sequence[Tensor]:
        if isinstance(index, slice):
            return _Clones(self._tensors[index])
        return self._tensors[index].detach().clone()


def _overridden(overrides: Mapping[int, Tensor], name: str, live: Tensor) -> Tensor:
    saved = overrides.get(id(live), live)
    if saved.shape != live.shape or saved.dtype != live.dtype:
        raise ValueError(f"the override of {name} is {saved.dtype} {tuple(saved.shape)}, unlike the original")
    return saved


def _refuse_strangers(key: str, optimizer: Optimizer, names: Mapping[int, str]) -> None:
    strangers = [parameter for parameter in parameters_in(optimizer) if id(parameter) not in names]
    if strangers:
        shapes = ", ".join(str(tuple(parameter.shape)) for parameter in strangers[:3])
        more = ", …" if len(strangers) > 3 else ""
        raise ConfigError(
            f"Optimizer {key!r} trains {len(strangers)} parameters that are not in the model (of shape "
            f"{shapes}{more}). Hand over one module that holds all parameters, for instance a "
            "torch.nn.ModuleDict, and make the optimizer from that module's parameters."
        )


def _check_tensors(image: Image, tensors: Sequence[Tensor]) -> None:
    found = [(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)) for tensor in tensors]
    if found != [(entry.dtype, entry.shape) for entry in image.entries]:
        raise ProtocolError("the tensors of the state are not those that its image describes")


def _writes(part: str, ours: Mapping[str, Tensor], saved: Any) -> list[tuple[Tensor, Tensor]]:
    values = _keyed(saved, ours, part)
    for name, tensor in ours.items():
        source = values[name]
        fits = isinstance(source, Tensor) and source.shape == tensor.shape and source.dtype == tensor.dtype
        if not fits:
            raise ProtocolError(f"the state's content for {name} does not fit its structure")
    return [(tensor, values[name]) for name, tensor in ours.items()]


def _write(writes: Sequence[tuple[Tensor, Tensor]]) -> None:
    with torch.no_grad():
        for target, source in writes:
            target.copy_(source)


def _keyed(saved: Any, ours: Mapping[str, object], part: str) -> dict[str, Any]:
    if not isinstance(saved, dict) or saved.keys() != ours.keys():
        raise ProtocolError(f"the {part} of the state are not those of its structure")
    return saved


def _modules_with_state(model: Module) -> dict[str, Module]:
    """Modules that keep state outside of tensors, by torch's protocol for it."""
    return {
        plain_name(name): module
        for name, module in model.named_modules()
        if type(module).get_extra_state is not Module.get_extra_state
    }


def _hand_over(who: str, load: Callable[[Any], object], saved: Any) -> None:
    try:
        load(saved)
    except ConfigError:
        # It says what to do, and nothing has been changed.
        raise
    except Exception as error:
        raise ConfigError(
            f"{who} could not load the state that its counterpart on another replica gave: "
            f"{type(error).__name__}: {error}. The model's weights have not been changed."
        ) from error


def _kind(value: object) -> str:
    return type(value).__qualname__
