"""Where a benchmark keeps what is agreed on: on the disk, or in three members of etcd that it starts."""

import argparse
import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

EMBEDDED, ETCD = "embedded", "etcd"
TESTS = str(Path(__file__).parents[1] / "tests")
MEMBERS = 3


def add_option(parser: argparse.ArgumentParser) -> None:
    """Where several benchmarks share a command line, they share this."""
    with contextlib.suppress(argparse.ArgumentError):
        parser.add_argument(
            "--store", choices=(EMBEDDED, ETCD), default=EMBEDDED, help="what keeps membership (embedded)"
        )


@contextlib.contextmanager
def opened(kind: str, folder: Path) -> Iterator[str]:
    """The address of the store, as `outlast run --store` has it; empty for the one on the disk."""
    if kind == EMBEDDED:
        yield ""
        return
    sys.path.insert(0, TESTS)
    from servers import etcd  # type: ignore[import-not-found, unused-ignore]

    if etcd.missing():
        raise RuntimeError(etcd.missing())
    cluster = etcd.Etcd(folder / "etcd", members=MEMBERS)
    try:
        cluster.wait()
        yield cluster.address("bench")
    finally:
        cluster.stop()
