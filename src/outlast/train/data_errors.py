"""What can go wrong with the training data. Each message names the step, and if known shard and sample."""

from outlast.errors import OutlastError


class DataError(OutlastError):
    """The training data could not be had."""


class DatasetChanged(DataError):
    """The dataset has another length than at the start, so positions no longer mean the same samples."""


class SampleFailed(DataError):
    """The dataset, or collate_fn, raised; the original error is the `__cause__`."""


class WorkerDied(DataError):
    """A loading process ended without being asked to."""
