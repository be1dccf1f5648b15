"""Places where a replica can be made to die, for tests and drills.

Each is a moment at which a death has consequences of its own. `reach` is called there, and does nothing
unless somebody has armed that place; then the process kills itself with SIGKILL, which nothing in it can
catch, delay or clean up after. `outlast.testing.crash` arms them.

    forward    a shard is about to be computed           reduced    the record is held, but not applied
    backward   inside backward, some gradients are out   optimizer  inside the optimizer's step
    scatter    all contributions are sent, no word yet   joining    the state has come, but is not loaded
    gather     own results are sent, others not in yet   serving    about to copy the state for a joiner
    testify    second opinions are sent, no word yet

    copying    about to copy a share of a checkpoint     committing the intent is recorded, nothing put
    written    the share is durable, nobody knows        committed  the manifest is put, nobody knows
    intending  all shares are, the intent is not         claimed    a claim is put, but not recorded
    restoring  a checkpoint is read, but not loaded
"""

import os
import signal
from collections.abc import Callable

POINTS = ("forward", "backward", "scatter", "gather", "reduced", "optimizer", "joining", "serving")
HEARING_POINTS = ("testify",)
SAVE_POINTS = ("copying", "written", "intending", "committing", "committed", "claimed", "restoring")

armed: Callable[[str, int], bool] | None = None
"""Given a point and a step, whether to die there; None while nothing is armed."""

life = 0
"""Which life of the replica this is, as far as it knows."""


def reach(point: str, step: int) -> None:
    if armed is not None and armed(point, step):
        os.kill(os.getpid(), signal.SIGKILL)
