"""`outlast rewind`: let the next run go on from an older checkpoint."""

from __future__ import annotations

import argparse
import secrets
import sys

import msgspec

from outlast.cli.vaults import open_vault
from outlast.errors import CheckpointError, UsageError
from outlast.state.vault.finding import find_checkpoint, which_of
from outlast.state.vault.names import CHUNKS, checkpoint_of
from outlast.state.vault.occupancy import note_end
from outlast.state.vault.vault import Vault


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="outlast rewind",
        description="Make the next run with this URL go on from an older checkpoint. Newer ones are set "
        "aside: rewinding to one of them brings it back, until the next run saves, which prunes them.",
    )
    parser.add_argument("url", help="where the run saves its checkpoints")
    parser.add_argument("--to", required=True, metavar="STEP", help="the step, or the name, to go back to")
    parser.add_argument("--claim", type=int, metavar="N", help="which one, if there are several of that step")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of sentences")
    options = parser.parse_args(argv)
    vault = open_vault(options.url)
    name, manifest = find_checkpoint(vault, which_of(options.to), options.claim)
    _refuse_if_incomplete(vault, name)
    trunk = vault.trunk()
    aside = trunk[: trunk.index(name)] if name in trunk else trunk
    if not options.yes:
        _ask(manifest.step, len(aside), vault.storage.url)
    run = f"rewind-{secrets.token_hex(4)}"
    claim = vault.make_claim(run=run, lineage=manifest.lineage, base=name, goes_back=True)
    note_end(vault.storage, claim)
    steps = [found.step for other in aside if (found := checkpoint_of(other))]
    if options.json:
        told = {"step": manifest.step, "checkpoint": name, "claim": claim.number, "set_aside": steps}
        sys.stdout.buffer.write(msgspec.json.encode(told) + b"\n")
    else:
        print(f"The next run with {vault.storage.url} goes on from step {manifest.step}.")
        if steps:
            print(
                f"{len(steps)} newer checkpoints are set aside (steps {min(steps)} to {max(steps)}). "
                "Rewinding to one of them brings it back; the next run deletes them when it saves."
            )
    return 0


def _refuse_if_incomplete(vault: Vault, name: str) -> None:
    manifest = vault.read_manifest(name)
    stored = {s.key: s.size_bytes for s in vault.storage.list(CHUNKS)}
    lost = [c for c in manifest.chunks if stored.get(c.name) != c.stored_bytes]
    if lost:
        raise CheckpointError(
            f"The checkpoint of step {manifest.step} is not whole: {len(lost)} of its {len(manifest.chunks)} "
            "chunks are missing or cut short. Choose another one: outlast checkpoints ls shows them."
        )


def _ask(step: int, newer: int, url: str) -> None:
    if not sys.stdin.isatty():
        raise UsageError("rewind asks before it changes anything, and there is no terminal: say --yes")
    answer = input(f"Go back to step {step} in {url}, and set {newer} newer checkpoints aside? [y/N] ")
    if answer.strip().lower() not in ("y", "yes"):
        raise UsageError("nothing was changed")
