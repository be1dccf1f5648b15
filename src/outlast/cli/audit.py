"""`outlast audit`: whether every sample was used exactly once per pass, from the ledgers of a run."""

import argparse
import sys
from pathlib import Path

import msgspec

from outlast.errors import UsageError
from outlast.train.audit import Audit, merge_ledgers

WRONG = 1
SUFFIX = ".ledger"


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="outlast audit",
        description="Put together the ledgers that a run's replicas have written (outlast.join(ledger=DIR)), "
        "check them against each other, and say whether every sample was used exactly once in each pass.",
        epilog="exit codes: 0 all is well, 1 something is wrong, 2 there are no ledgers to read",
    )
    parser.add_argument("ledgers", metavar="LEDGER_DIR", type=Path, help="the folder given as ledger=")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of sentences")
    options = parser.parse_args(argv)
    audit = _read(_ledgers(options.ledgers))
    if options.json:
        sys.stdout.buffer.write(msgspec.json.encode({"ok": audit.ok, **msgspec.to_builtins(audit)}) + b"\n")
    else:
        print(audit.describe())
    return 0 if audit.ok else WRONG


def _ledgers(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}; give the one that the script has as ledger=")
    found = sorted(folder.glob(f"*{SUFFIX}"))
    if not found:
        raise UsageError(
            f"{folder} holds no file that ends with {SUFFIX}: no replica has written a ledger there"
        )
    return found


def _read(paths: list[Path]) -> Audit:
    try:
        return merge_ledgers(paths)
    except OSError as error:
        raise UsageError(f"{error.filename} cannot be read: {error.strerror}") from error
