"""The local side of a step: gradients become this replica's contribution, and the result comes back.

    start_step ─ assign ─┬─ open_shard ─ backward … ─ close_shard ─┬─ take
                         └──────── for each missing shard ─────────┘

A hook on every parameter moves its gradient, times the shard's weight, to its place in a flat vector: one
pass, and the gradient's own memory is free again at once. (Where all fit into one bucket, they are moved
together after backward.) Finished buckets are added along the fixed tree and reported while backward still
runs (`on_bucket`), and each finished sum of the replica's cover is reported after its last bucket
(`on_node`). Both are called in the training thread, often inside of backward: they must hand over and return.
Whoever sends from `flat` after returning leases it from `pool` until it is sent.

The bits of a sum depend on the shards' data alone: not on who computed them, not on what was expected of
backward, and not on how often shards moved in between.

With one shard per replica there is one flat vector here: it is the gradient on the way out, and becomes the
user's `.grad` when the result is there. `.grad` is valid until the next step starts.
"""

from collections.abc import Iterable
from functools import partial

import torch
from torch import Tensor, nn

from outlast.errors import ConfigError
from outlast.protocol.tree import Node
from outlast.train.buffers import StepBuffers
from outlast.train.flats import FlatPool
from outlast.train.layout import Layout
from outlast.train.shard import Expectation, OpenShard
from outlast.train.sums import NodeSum, OnBucket, OnNode, Sums

__all__ = ["Gradients", "NodeSum"]


class Gradients:
    """One model's gradients, for one step after another. Not for more than one thread, except `pool`."""

    def __init__(
        self,
        layout: Layout,
        model: nn.Module,
        shard_count: int,
        on_bucket: OnBucket,
        on_node: OnNode,
        *,
        apart: bool = False,
    ) -> None:
        """`apart`: a rule wants to see every shard by itself."""
        self.pool = FlatPool(layout.size, layout.dtype)
        self._layout = layout
        self._on_bucket = on_bucket
        self._on_node = on_node
        dtypes = [integer.dtype for integer in layout.integers]
        self._own = Sums(shard_count, self.pool, dtypes, apart=apart)
        self._second = Sums(shard_count, self.pool, dtypes, apart=apart)
        """Contributions of others, computed again, beside the own ones."""
        self._sums = self._own
        """Those that are being made."""
        self._buffers = StepBuffers(layout, model)
        self._expectation = Expectation(layout)
        self._parameters = layout.parameters(model)
        named = dict(model.named_parameters())
        self._frozen = [named[name] for name in layout.frozen]
        # Gradients for parameters whose own can't be part of the flat vector: another dtype or device.
        self._converted: dict[int, Tensor] = {}
        self._factor = torch.zeros((), dtype=layout.dtype)
        self._users_flat: Tensor | None = None
        self._open: OpenShard | None = None
        self._in_backward = False
        # A single bucket can't go out before the last gradient is there, so they are all collected then: for
        # a small model, a hook for each of them takes longer than everything else that is done here.
        self._collects = layout.parameter_buckets == 1
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                partial(self._accumulate, index)
            )
            for index, parameter in enumerate(() if self._collects else self._parameters)
        ]

    def start_step(self) -> None:
        """Forget the step before; its `.grad` is void, its vectors are used again."""
        self.abandon_shard()
        self._forget()
        self._clear_gradients()
        if self._users_flat is not None:
            self.pool.give_back(self._users_flat)
            self._users_flat = None
        for name, parameter in zip(self._layout.frozen, self._frozen, strict=True):
            if parameter.requires_grad:
                raise ConfigError(
                    f"The parameter {name} was frozen when the job was joined and is trainable now, so its "
                    "gradient would stay on this replica. Join with it trainable, and freeze it after that "
                    "until it should be trained."
                )
        self._buffers.remember()
        self._expectation.start_step()

    def discard(self) -> None:
        """What has been computed of this step is not believed any more."""
        self.abandon_shard()
        self._forget()

    def assign(self, shards: Iterable[int]) -> None:
        """These are the shards to contribute now. Sums that are still part of them are kept."""
        self._second.forget()
        self._sums = self._own
        self._sums.assign(shards)
        if self._open is not None:
            if self._sums.is_missing(self._open.shard):
                self._find_path(self._open)
            else:
                self._open.spoil()

    def ask(self, nodes: Iterable[Node]) -> None:
        """All assigned shards are there: now compute these contributions again, until the next step or
        assignment. What has been contributed stays as it is."""
        self.abandon_shard()
        self._sums = self._second
        self._sums.ask(nodes)

    def missing(self) -> list[int]:
        """The assigned shards, or those asked for, that are still to be computed, ascending."""
        return self._sums.missing()

    def nodes(self) -> list[NodeSum]:
        """The complete sums among those to send, from left to right."""
        return self._own.nodes()

    def opinions(self) -> list[NodeSum]:
        """The contributions that were asked for."""
        return self._second.nodes()

    def _forget(self) -> None:
        self._second.forget()
        self._own.forget()
        self._sums = self._own

    def open_shard(self, shard: int, samples: float) -> None:
        """Make ready for a shard's forward pass. Its losses weigh `samples` unless they say otherwise."""
        self.abandon_shard()
        assert self._sums.is_missing(shard), f"shard {shard} is not among the missing {self.missing()}"
        self._clear_gradients()
        self._buffers.begin_shard()
        self._open = self._new_shard(shard, samples)

    def backward(self, loss: Tensor, weight: float | None = None, *, retain_graph: bool = False) -> None:
        """Add a loss of the open shard; it must be a mean (or weighted mean) over what `weight` counts."""
        shard = self._open_shard("backward")
        if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
            raise _not_a_loss(loss, shard.shard)
        factor = shard.weigh(weight)
        if factor == 0:
            # Not even multiplied by zero: the mean over no tokens is NaN, and so is zero times that.
            return
        shard.loss += factor * loss.item()
        shard.multiply_by(factor)
        shard.failed = True
        if self._collects:
            self._refuse_foreign_gradients(shard)
        self._in_backward = True
        try:
            loss.backward(retain_graph=retain_graph)  # type: ignore[no-untyped-call]
        finally:
            self._in_backward = False
        if self._collects:
            self._collect(shard)
        shard.failed = False

    def close_shard(self) -> None:
        """The shard is done: report what is finished with it. If it turns out that it must be computed
        again, it is simply still missing."""
        shard = self._open_shard("close_shard")
        if self._collects:
            self._refuse_foreign_gradients(shard)
        if not shard.weighed:
            raise ConfigError(
                f"Shard {shard.shard} ended without a loss. Call step.backward(loss) in every shard; where "
                "there is nothing to learn from, with weight=0."
            )
        if shard.spoilt:
            self.abandon_shard()
        else:
            self._finish(shard)
            self._open = None

    def empty_shard(self, shard: int) -> None:
        """Contribute a shard without samples: zeros that count nothing."""
        self.abandon_shard()
        assert self._sums.is_missing(shard), f"shard {shard} is not among the missing {self.missing()}"
        self._finish(self._new_shard(shard, 0.0))

    def abandon_shard(self) -> None:
        """Give up the open shard, if there is one. It is still missing."""
        if self._open is not None:
            self.pool.give_back(self._open.flat)
            self._open = None

    def step_buffers(self) -> dict[int, Tensor]:
        """Tensors that a shard may have changed, by their `id`, and what they were when the step began."""
        return self._buffers.saved()

    def buffers_digest(self) -> bytes:
        """Of the buffers from which all shards of this step start; empty for a model without any."""
        return self._buffers.digest()

    def buffer_entries(self) -> bytes:
        """Digests of each of them."""
        return self._buffers.entries()

    def take(self, record: Tensor, weight: float, mask: int, integers: dict[int, bytes]) -> None:
        """The step's result, as sums that have this weight: set `.grad` and the buffers to the mean. Both are
        the user's; the record stays as it is."""
        self.abandon_shard()
        self._forget()
        if self._users_flat is None:
            self._users_flat = self.pool.take()
        flat = self._users_flat
        torch.div(record, weight, out=flat)
        views = self._layout.views(flat)
        dtype = self._layout.dtype
        for index, parameter in enumerate(self._parameters):
            if not mask >> index & 1:
                parameter.grad = None
            elif parameter.dtype is dtype and parameter.is_cpu:
                parameter.grad = views[index]
            else:
                parameter.grad = self._convert(index, parameter, views[index])
        self._buffers.take(views, mask, integers)

    def close(self) -> None:
        """Take the hooks off the model and leave it as it is."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _accumulate(self, index: int, parameter: Tensor) -> None:
        """A gradient has arrived. This is the hook: it runs for every parameter in every backward."""
        shard = self._open
        if shard is None:
            return
        if not self._in_backward:
            raise _foreign_gradient(shard.shard)
        grad = parameter.grad
        assert grad is not None
        self._refuse_sparse(index, grad)
        shard.add(index, grad)
        parameter.grad = None

    def _refuse_sparse(self, index: int, grad: Tensor) -> None:
        if grad.layout is not torch.strided:
            raise ConfigError(
                f"The gradient of {self._layout.entries[index].name} is sparse, which can't be reduced. "
                "Create its embedding with sparse=False."
            )

    def _refuse_foreign_gradients(self, shard: OpenShard) -> None:
        for parameter in self._parameters:
            if parameter.grad is not None:
                raise _foreign_gradient(shard.shard)

    def _collect(self, shard: OpenShard) -> None:
        """All gradients of a backward are there."""
        grads: list[Tensor] = []
        for index, parameter in enumerate(self._parameters):
            grad = parameter.grad
            if grad is not None:
                self._refuse_sparse(index, grad)
                parameter.grad = None
                grads.append(grad)
            else:
                grads.append(shard.nothing)
        shard.add_all(grads)

    def _open_shard(self, caller: str) -> OpenShard:
        if self._open is None:
            raise ConfigError(f"{caller} was called outside of a shard. Call it in `for shard in step`.")
        if self._open.failed:
            raise ConfigError(
                f"An earlier backward of shard {self._open.shard} failed, so its gradient is incomplete. "
                "Let that error end the loop, or fix its cause; a shard can't go on after it."
            )
        return self._open

    def _new_shard(self, shard: int, samples: float) -> OpenShard:
        new = OpenShard(
            shard,
            samples,
            self.pool.take(),
            factor=self._factor,
            layout=self._layout,
            expectation=self._expectation,
            on_bucket=self._on_bucket,
        )
        self._find_path(new)
        return new

    def _find_path(self, shard: OpenShard) -> None:
        node, siblings = self._sums.path(shard.shard)
        shard.lead_to(node, siblings, self._sums.is_sent(node))

    def _finish(self, shard: OpenShard) -> None:
        shard.finish(*self._buffers.end_shard(shard.weight, shard.flat))
        self._sums.settle(shard.sum, shard.shard, shard.siblings)
        if shard.is_sent:
            self._on_node(shard.sum)

    def _clear_gradients(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    def _convert(self, index: int, parameter: Tensor, value: Tensor) -> Tensor:
        kept = self._converted.get(index)
        if kept is None or kept.dtype is not parameter.dtype or kept.device != parameter.device:
            kept = self._converted[index] = torch.empty_like(parameter, requires_grad=False)
        return kept.copy_(value)


def _foreign_gradient(shard: int) -> ConfigError:
    return ConfigError(
        f"loss.backward() was called in shard {shard}: its gradient would be lost. Call "
        "step.backward(loss) instead."
    )


def _not_a_loss(loss: object, shard: int) -> ConfigError:
    if not isinstance(loss, Tensor):
        what = f"a {type(loss).__name__}"
    elif loss.numel() != 1:
        what = f"a tensor of shape {tuple(loss.shape)}"
    else:
        what = "a tensor that does not require grad"
    return ConfigError(
        f"step.backward got {what} in shard {shard}. It takes the loss as a scalar tensor that was computed "
        "from the model's parameters: reduce it with .mean(), and don't detach it."
    )
