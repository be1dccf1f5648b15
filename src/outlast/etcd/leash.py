"""`python -m outlast.etcd.leash PID PROGRAM ARGUMENT…`: become that program, and die with process PID.

The wish to die with the parent outlives exec, so it need not be the program's own.
"""

import os
import sys

from outlast.kinship import die_with_parent

if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))
    os.execv(sys.argv[2], sys.argv[2:])  # noqa: S606 (this is what it is for)
