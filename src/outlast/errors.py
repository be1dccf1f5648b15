"""Every error Outlast raises on purpose, as one tree.

    OutlastError
    ├── UsageError            the call or the command line is wrong
    │   ├── ConfigError       a setting has a value that cannot work
    │   ├── LoopError         the training loop does what a loop of steps must not do
    │   └── ScriptNotFound    the training script is not there
    ├── JobFailed             the job ended without finishing
    ├── TrainingDiverged      for many steps, nothing that was computed made sense
    ├── DataError             the training data could not be had
    │   ├── DatasetChanged    the dataset has another length than at the start
    │   ├── SampleFailed      the dataset, or collate_fn, raised: that error is the cause
    │   └── WorkerDied        a loading process ended without being asked to
    ├── AddressInUse          somebody else listens on the port
    ├── StoreError            the coordinator's store
    │   ├── StoreFull         no space is left; nothing was lost, nothing was decided
    │   ├── StoreDamaged      the log is corrupt in a place that no crash can explain
    │   ├── StoreLocked       another process has this store open
    │   ├── OutcomeUnknown    a commit may or may not have happened: read again
    │   └── Compacted         the asked-for history is gone: read the state anew
    ├── StorageError          where checkpoints lie
    │   ├── StorageUnavailable  it does not answer, or not in time; what was asked may have been done
    │   ├── StorageFull       no space is left, or a quota is used up
    │   ├── StorageDenied     it refuses: credentials, permissions, a read-only disk
    │   ├── ObjectMissing     there is no such object
    │   └── ObjectDamaged     an object is not what was written: cut short, or its hash is another
    ├── CheckpointError       a checkpoint cannot be used, or not be made
    │   ├── NoCheckpoint      there is none, or none that is good
    │   ├── SaveGivenUp       a save was told to end before it was complete
    │   └── VaultTaken        another job writes to this URL
    ├── DivergedError         replicas do not hold the same state, and there is none to go back to
    ├── PeerRejected          a peer could not prove that it belongs to the job
    ├── ProtocolError         a peer sent something that the protocol does not allow
    ├── CoordinatorLost       no coordinator answered in time
    └── Fenced                this incarnation was evicted: its state is void

Each message says what happened, to whom, and what to do now. Each class that can end a command has an
exit code of its own, so that scripts and schedulers can tell the cases apart.
"""


class OutlastError(Exception):
    """The root of the tree; `exit_code` is what a command that ends with this error returns."""

    exit_code = 1


class UsageError(OutlastError):
    exit_code = 2


class ConfigError(UsageError):
    """A setting that cannot work, named together with its value and the fix."""


class LoopError(UsageError):
    """The training loop breaks a rule that all replicas rely on; names the replica, the step and the rule."""


class ScriptNotFound(UsageError):
    exit_code = 3


class JobFailed(OutlastError):
    exit_code = 4


class TrainingDiverged(OutlastError):
    """What was computed in many steps in a row was not finite, or absurd, and no replica is to blame."""


class DataError(OutlastError):
    """The training data could not be had. The message names the step, and if known shard and sample."""


class DatasetChanged(DataError):
    """Positions no longer mean the same samples."""


class SampleFailed(DataError):
    """The original error is the `__cause__`."""


class WorkerDied(DataError):
    pass


class AddressInUse(OutlastError):
    exit_code = 5


class StoreError(OutlastError):
    exit_code = 8


class StoreFull(StoreError):
    exit_code = 6


class StoreDamaged(StoreError):
    exit_code = 7


class StoreLocked(StoreError):
    pass


class OutcomeUnknown(StoreError):
    pass


class Compacted(StoreError):
    pass


class StorageError(OutlastError):
    exit_code = 9


class StorageUnavailable(StorageError):
    pass


class StorageFull(StorageError):
    pass


class StorageDenied(StorageError):
    pass


class ObjectMissing(StorageError):
    pass


class ObjectDamaged(StorageError):
    pass


class CheckpointError(OutlastError):
    exit_code = 10


class NoCheckpoint(CheckpointError):
    pass


class SaveGivenUp(CheckpointError):
    pass


class VaultTaken(CheckpointError):
    pass


class DivergedError(OutlastError):
    """The states of replicas differ, and this process cannot go on from what it has."""


class PeerRejected(OutlastError):
    pass


class ProtocolError(OutlastError):
    pass


class CoordinatorLost(OutlastError):
    exit_code = 11


class Fenced(OutlastError):
    pass
