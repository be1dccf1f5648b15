"""Where each parameter and each buffer of a model lies in one flat vector.

What members exchange in a step is a single vector, so that a slice of it can be cut anywhere, added and sent
without knowing what it means. A layout is that meaning: it is made from the model's structure alone, so every
member that runs the same script has the same one.

Parameters come in reverse order of registration, because that is roughly the order in which backward
produces their gradients, and are grouped into *buckets* that can go out while backward still runs. The first
bucket is smaller, so that the network has something to do early. Floating-point buffers (a BatchNorm's
running statistics) follow in a bucket of their own: they are known only when the shard is finished. All of
them, parameters first, are the *entries*; a set of entries is a bit mask in a Python int. Buffers that are no
floats can't be averaged; they are listed in `integers` and travel aside.
"""

import weakref
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from outlast.errors import ConfigError

BUCKET_BYTES = 4 << 20
FIRST_BUCKET_BYTES = 1 << 20


class Span(NamedTuple):
    """The elements `start`, `start + 1`, … `stop - 1` of the flat vector."""

    start: int
    stop: int


class Entry(NamedTuple):
    """One parameter or floating-point buffer, and its place in the flat vector."""

    name: str
    shape: torch.Size
    stride: tuple[int, ...]
    span: Span


class IntegerBuffer(NamedTuple):
    """A buffer that can't be averaged: counters, index tables, flags."""

    name: str
    dtype: torch.dtype
    shape: torch.Size


class Layout:
    """The entries of one model, their places, and the views of them into flat vectors."""

    def __init__(
        self,
        model: nn.Module,
        *,
        bucket_bytes: int = BUCKET_BYTES,
        first_bucket_bytes: int = FIRST_BUCKET_BYTES,
    ) -> None:
        _refuse_wrapped(model)
        parameters: list[tuple[str, Tensor]] = []
        frozen: list[str] = []
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                _refuse_unfit(name, parameter)
                parameters.append((name, parameter))
            else:
                frozen.append(name)
        if not parameters:
            raise ConfigError(
                f"{type(model).__name__} has no trainable parameter, so there is nothing to train. "
                "Set requires_grad on what should be trained before joining the job."
            )
        parameters.reverse()
        floats = [(name, buffer) for name, buffer in model.named_buffers() if buffer.is_floating_point()]
        self.parameter_count = len(parameters)
        self.frozen = tuple(frozen)
        self.dtype = torch.float64 if any(p.dtype is torch.float64 for _, p in parameters) else torch.float32
        self.entries = tuple(_placed([*parameters, *floats]))
        self.size = self.entries[-1].span.stop
        self.integers = tuple(
            IntegerBuffer(name, buffer.dtype, buffer.shape)
            for name, buffer in model.named_buffers()
            if not buffer.is_floating_point()
        )

        limits = first_bucket_bytes // self.dtype.itemsize, bucket_bytes // self.dtype.itemsize
        self.bucket_entries = tuple(
            _grouped([entry.span for entry in self.entries[: len(parameters)]], *limits)
        )
        self.parameter_buckets = len(self.bucket_entries)
        if floats:
            self.bucket_entries += (range(len(parameters), len(self.entries)),)
        self.buckets = tuple(
            Span(self.entries[group[0]].span.start, self.entries[group[-1]].span.stop)
            for group in self.bucket_entries
        )
        self.bucket_of = tuple(
            bucket for bucket, group in enumerate(self.bucket_entries) for _ in range(len(group))
        )
        self._cuts: dict[int, tuple[weakref.ref[Tensor], list[Tensor], list[Tensor]]] = {}

    @property
    def float_entries(self) -> tuple[Entry, ...]:
        return self.entries[self.parameter_count :]

    @property
    def all_parameters(self) -> int:
        """The mask in which every parameter was used."""
        return (1 << self.parameter_count) - 1

    def parameters(self, model: nn.Module) -> list[nn.Parameter]:
        """This model's parameters, in the order of the entries."""
        named = dict(model.named_parameters())
        return [named[entry.name] for entry in self.entries[: self.parameter_count]]

    def views(self, flat: Tensor) -> list[Tensor]:
        """Each entry's part of a flat vector, in the entry's own shape."""
        return self._cut(flat)[1]

    def bucket_views(self, flat: Tensor) -> list[Tensor]:
        """Each bucket's part of a flat vector."""
        return self._cut(flat)[2]

    def _cut(self, flat: Tensor) -> tuple[weakref.ref[Tensor], list[Tensor], list[Tensor]]:
        """Making views takes longer than using them, so they are kept for as long as their vector is."""
        key = id(flat)
        cut = self._cuts.get(key)
        if cut is not None and cut[0]() is flat:
            return cut
        assert flat.shape == (self.size,) and flat.dtype is self.dtype, "a flat vector of another layout"
        # A view keeps what it was made from alive. Made from an alias, it keeps only the memory.
        alias = flat.detach()
        views = [alias[e.span.start : e.span.stop].as_strided(e.shape, e.stride) for e in self.entries]
        buckets = [alias[span.start : span.stop] for span in self.buckets]
        cut = weakref.ref(flat, lambda _: self._cuts.pop(key, None)), views, buckets
        self._cuts[key] = cut
        return cut


def _placed(tensors: list[tuple[str, Tensor]]) -> Iterator[Entry]:
    start = 0
    for name, tensor in tensors:
        stop = start + tensor.numel()
        # This keeps the strides where the memory has neither gaps nor overlaps, so that a gradient has its
        # parameter's memory format (channels last, say), and is contiguous elsewhere.
        stride = torch.empty_like(tensor, device="meta").stride()
        yield Entry(name, tensor.shape, stride, Span(start, stop))
        start = stop


def _grouped(spans: list[Span], first_limit: int, limit: int) -> Iterator[range]:
    """Runs of parameters, each just large enough: a small one goes with the large one that follows it."""
    first = 0
    for index, span in enumerate(spans):
        if span.stop - spans[first].start >= (first_limit if first == 0 else limit):
            yield range(first, index + 1)
            first = index + 1
    if first < len(spans):
        yield range(first, len(spans))


def _refuse_wrapped(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, nn.parallel.DistributedDataParallel | nn.DataParallel):
            raise ConfigError(
                f"{name or 'The model'} is wrapped in {type(module).__name__}, which would sum gradients by "
                "itself. Outlast takes its place: pass the plain model (what is in `.module`)."
            )


def _refuse_unfit(name: str, parameter: nn.Parameter) -> None:
    if nn.parameter.is_lazy(parameter) or parameter.is_meta:
        raise ConfigError(
            f"The parameter {name} has no data yet. Run one forward pass (lazy modules) or load the weights "
            "(meta device) before joining the job."
        )
    if parameter.is_complex():
        raise ConfigError(
            f"The parameter {name} is complex ({parameter.dtype}), which can't be reduced. Hold it as a real "
            "parameter with a last dimension of 2 and use torch.view_as_complex in forward."
        )
