"""Small disks that can be full: file systems in memory, mounted for one test. It takes root to mount them."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

SIZE_MIB = 16
_FILLER = "filler"


def can_mount() -> bool:
    return os.geteuid() == 0


@contextlib.contextmanager
def small_disk(place: Path) -> Iterator[None]:
    place.mkdir(parents=True, exist_ok=True)
    place.chmod(0o700)
    options = f"size={SIZE_MIB}m,mode=0700"
    subprocess.run(["/bin/mount", "-t", "tmpfs", "-o", options, "torture", str(place)], check=True)
    try:
        yield
    finally:
        # Whoever should still hold on to it is found by other checks, and must not keep the mount.
        subprocess.run(["/bin/umount", "--lazy", str(place)], check=True)


def fill(place: Path) -> None:
    """Leave no byte free."""
    with contextlib.suppress(OSError), (place / _FILLER).open("ab", buffering=0) as filler:
        for size in (1 << 20, 1 << 12):
            with contextlib.suppress(OSError):
                while True:
                    filler.write(bytes(size))


def make_room(place: Path) -> None:
    (place / _FILLER).unlink(missing_ok=True)
