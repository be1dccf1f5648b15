"""Room for connections, as far as the system gives it."""

import subprocess
import sys

import pytest

# In a process of its own: a hard limit that was lowered cannot be raised again.
PROGRAM = """
import resource, sys
from outlast.wire.descriptors import allow
soft, hard, wanted = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
print(allow(wanted), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "allowed", "soft_after"),
    [(256, 4000, 1000, 1000, 1128), (256, 600, 1000, 472, 600), (2000, 4000, 1000, 1000, 2000)],
    ids=["raised", "as far as it goes", "enough already"],
)
def test_the_limit_is_raised_as_far_as_needed(
    soft: int, hard: int, wanted: int, allowed: int, soft_after: int
) -> None:
    command = [sys.executable, "-c", PROGRAM, *map(str, (soft, hard, wanted))]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert said.split() == [str(allowed), str(soft_after)]
