"""Reading on in files that replicas write line by line, while they grow."""

from collections.abc import Iterator
from pathlib import Path


class Following:
    """The files `replica-N.SUFFIX` of a directory; each line is given once, when it is whole."""

    def __init__(self, directory: Path, suffix: str) -> None:
        self._directory = directory
        self._suffix = suffix
        self._read_bytes: dict[Path, int] = {}

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """The replica, and its line."""
        for path in sorted(self._directory.glob(f"replica-*.{self._suffix}")):
            with path.open("rb") as file:
                file.seek(self._read_bytes.get(path, 0))
                # A line may be half written, by somebody who was killed or is about to write the rest.
                whole = file.read().rpartition(b"\n")[0]
            if not whole:
                continue
            self._read_bytes[path] = self._read_bytes.get(path, 0) + len(whole) + 1
            replica = int(path.stem.partition("-")[2])
            for line in whole.splitlines():
                yield replica, line
