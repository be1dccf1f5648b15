"""One shard while it is being computed: gradients come in, finished buckets go out.

A parameter's gradient may arrive in parts: a weight that is used in several checkpointed segments, or a shard
with two losses. Nothing announces the last part, so a bucket is *expected* to be final once each of its
parameters has come as often as it did before. Then it is added to the siblings that wait for it and reported,
while backward still runs. The expectation is learned from the first shard. It may be wrong, and then speed
is all that may suffer:

- a parameter stays out: its bucket goes out when the shard ends;
- a parameter comes after its bucket was reported: the bucket is reported once more when the shard ends;
- a parameter comes after its bucket was added to siblings: the addition can't be undone, so the shard is
  *spoilt* and must be computed again (its siblings are intact), this time without going ahead of things.
"""

import torch
from torch import Tensor

from outlast.errors import ConfigError
from outlast.protocol.tree import Node
from outlast.train.layout import Layout
from outlast.train.sums import NodeSum, OnBucket

WEIGHT_MOST = 1e12
"""More than there are tokens; the squares of what is multiplied by it are still numbers."""


class Expectation:
    """How often each parameter's gradient arrives in a shard, as far as is known."""

    def __init__(self, layout: Layout) -> None:
        self._bucket_of = layout.bucket_of
        self.of_parameter = [0] * layout.parameter_count
        self.of_bucket = [0] * len(layout.buckets)
        self._learned = False
        self._trusted = True

    @property
    def useful(self) -> bool:
        """Whether buckets may go out before the shard ends."""
        return self._learned and self._trusted

    def start_step(self) -> None:
        self._trusted = True

    def distrust(self) -> None:
        """It was wrong in a way that cost a shard; be careful for the rest of the step."""
        self._trusted = False

    def learn(self, counts: list[int]) -> None:
        if not self._learned and any(counts):
            self._learned = True
            for index, count in enumerate(counts):
                self.raise_to(index, count)

    def raise_to(self, index: int, count: int) -> None:
        more = count - self.of_parameter[index]
        if more > 0:
            self.of_parameter[index] = count
            self.of_bucket[self._bucket_of[index]] += more


class OpenShard:
    """The gradient of one shard, under way to become part of `sum`."""

    nothing = torch.empty(0)
    """Stands for a gradient that a backward did not give."""

    def __init__(
        self,
        shard: int,
        samples: float,
        flat: Tensor,
        *,
        factor: Tensor,
        layout: Layout,
        expectation: Expectation,
        on_bucket: OnBucket,
    ) -> None:
        self.shard = shard
        self.samples = samples
        self.flat = flat
        self.spoilt = False
        self.failed = False
        self.weight = 0.0
        self.loss = 0.0
        self.siblings: tuple[NodeSum, ...] = ()
        self.views = layout.views(flat)
        self._factor = 0.0
        self._factor_tensor = factor
        self._explicit: bool | None = None
        self._layout = layout
        self._bucket_of = layout.bucket_of
        self._spans = layout.bucket_views(flat)
        self._dtype = layout.dtype
        self._counts = [0] * layout.parameter_count
        self._expectation = expectation
        self._expected = expectation.of_parameter
        self._pending = expectation.of_bucket.copy()
        self._early = expectation.useful
        self._gone = [False] * len(layout.buckets)
        self._again: set[int] = set()
        self._on_bucket = on_bucket

    def lead_to(self, node: Node, siblings: tuple[NodeSum, ...], is_sent: bool) -> None:
        """Say what this shard's sum will be: called at the start, and whenever the assignment changes."""
        if any(self._gone):
            # What was reported so far was reported to an attempt that is void.
            self._early = False
            if siblings == self.siblings:
                self._again.update(bucket for bucket, gone in enumerate(self._gone) if gone)
            else:
                self.spoil()
        self.sum = NodeSum(node, self.flat)
        self.siblings = siblings
        self.is_sent = is_sent
        self._added = [
            (self._layout.bucket_views(beside.flat), beside.node.lo < self.shard) for beside in siblings
        ]

    def weigh(self, weight: float | None) -> float:
        """What one more loss counts. The default is the shard's and counts once; explicit weights add up."""
        explicit = weight is not None
        if self._explicit is not None and self._explicit is not explicit:
            raise ConfigError(
                f"Shard {self.shard} has one loss with a weight and one without. Give all of a shard's "
                "losses a weight (they add up), or none (the number of samples counts, once)."
            )
        value = float(self.samples if weight is None else weight)
        if not 0 <= value <= WEIGHT_MOST or (value == 0 and not explicit):
            what = "weight" if explicit else "samples"
            raise ConfigError(
                f"{what} = {value} in shard {self.shard}: a loss counts by a positive number up to "
                f"{WEIGHT_MOST:.0e}, such as that of the tokens it is the mean of. A weight of 0 leaves the "
                "loss out."
            )
        if explicit:
            self.weight += value
        else:
            self.weight = value
        self._explicit = explicit
        return value

    @property
    def weighed(self) -> bool:
        return self._explicit is not None

    def multiply_by(self, factor: float) -> None:
        """What the gradients that come next are multiplied by."""
        # Also as a tensor: torch takes longer to wrap a number than to multiply a small gradient by it.
        if factor != self._factor:
            self._factor = factor
            self._factor_tensor.fill_(factor)

    def add_all(self, grads: list[Tensor]) -> None:
        """The gradients of all parameters at once; `nothing` for those without."""
        plain = not any(self._counts) and all(
            grad is not self.nothing and grad.dtype is self._dtype and grad.is_cpu for grad in grads
        )
        if not plain:
            for index, grad in enumerate(grads):
                if grad is not self.nothing:
                    self.add(index, grad)
            return
        torch._foreach_copy_(self.views[: len(grads)], grads)
        self._spans[0].mul_(self._factor_tensor)
        self._counts = [1] * len(grads)

    def add(self, index: int, grad: Tensor) -> None:
        """One more part of a parameter's gradient. This runs in backward, for every parameter."""
        view = self.views[index]
        count = self._counts[index]
        as_is = grad.dtype is self._dtype and grad.is_cpu
        if count:
            view.add_(grad if as_is else grad.to(view.device, view.dtype), alpha=self._factor)
        elif as_is:
            torch.mul(grad, self._factor_tensor, out=view)
        else:
            view.copy_(grad).mul_(self._factor_tensor)
        self._counts[index] = count + 1
        bucket = self._bucket_of[index]
        if self._gone[bucket]:
            self._came_late(index, bucket)
        elif self._early and count < self._expected[index]:
            self._pending[bucket] -= 1
            if not self._pending[bucket]:
                self._finish_bucket(bucket)

    def finish(self, mask: int, integers: dict[int, bytes]) -> None:
        """The shard ends: send what has not gone yet. The float buffers have been written to `views`."""
        self._expectation.learn(self._counts)
        self.sum.weight = self.weight
        self.sum.loss = self.loss
        self.sum.mask = self._used() | mask
        self.sum.integers = integers
        for bucket, gone in enumerate(self._gone):
            if not gone:
                self._finish_bucket(bucket)
        if self.is_sent:
            for bucket in sorted(self._again):
                self._on_bucket(self.sum, bucket)

    def spoil(self) -> None:
        self.spoilt = True
        self._early = False

    def _used(self) -> int:
        """The mask of the parameters that had a gradient."""
        if 0 not in self._counts:
            return self._layout.all_parameters
        return sum(1 << index for index, count in enumerate(self._counts) if count)

    def _came_late(self, index: int, bucket: int) -> None:
        self._expectation.raise_to(index, self._counts[index])
        if self.siblings:
            self.spoil()
            self._expectation.distrust()
        else:
            self._again.add(bucket)

    def _finish_bucket(self, bucket: int) -> None:
        if bucket < self._layout.parameter_buckets:
            group = self._layout.bucket_entries[bucket]
            if 0 in self._counts[group.start : group.stop]:
                for index in group:
                    if not self._counts[index]:
                        self.views[index].zero_()
        mine = self._spans[bucket]
        for theirs, is_left in self._added:
            if is_left:
                torch.add(theirs[bucket], mine, out=mine)
            else:
                torch.add(mine, theirs[bucket], out=mine)
        self._gone[bucket] = True
        if self.is_sent:
            self._on_bucket(self.sum, bucket)
