"""`outlast checkpoints`: what lies under a URL, whether it is whole, and to and from other formats."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from outlast.cli.vaults import open_vault, size_text
from outlast.errors import ObjectDamaged, ObjectMissing, UsageError
from outlast.state.storage.opening import open_storage
from outlast.state.vault.ages import age_text
from outlast.state.vault.finding import Which, find_checkpoint, find_name, which_of
from outlast.state.vault.manifest import Chunk, Manifest
from outlast.state.vault.names import CHUNKS, checkpoint_of
from outlast.state.vault.pointers import names_of, own_names
from outlast.state.vault.retention import Keep
from outlast.state.vault.vault import Vault

DAMAGED = 1


def main(argv: list[str]) -> int:
    options = _parser().parse_args(argv)
    command: Callable[[argparse.Namespace], int] = options.command
    return command(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="outlast checkpoints", description="Look at, verify, convert and prune checkpoints."
    )
    chosen = parser.add_subparsers(required=True, metavar="COMMAND", title="commands")

    def add(name: str, summary: str, run: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
        command = chosen.add_parser(name, help=summary, description=summary.capitalize() + ".")
        command.set_defaults(command=run)
        command.add_argument("--json", action="store_true", help="print one JSON object for programs")
        return command

    def which(command: argparse.ArgumentParser) -> None:
        command.add_argument(
            "which", nargs="?", metavar="WHICH", help="a name or a step (the newest good one)"
        )

    def choose(command: argparse.ArgumentParser) -> None:
        command.add_argument("--step", type=int, metavar="N", help="which one (the newest good one)")
        command.add_argument(
            "--claim", type=int, metavar="N", help="which, if there are several of that step"
        )

    ls = add("ls", "list the checkpoints under a URL", _ls)
    ls.add_argument("url")
    show = add("show", "show one checkpoint and its tensors", _show)
    show.add_argument("url")
    which(show)
    choose(show)
    verify = add("verify", "read a checkpoint and compare it with its hashes", _verify)
    verify.add_argument("url")
    which(verify)
    choose(verify)
    verify.add_argument("--all", action="store_true", help="every checkpoint, on the trunk and off it")
    export = add("export", "write a checkpoint in the format of another tool", _export)
    export.add_argument("url")
    which(export)
    export.add_argument(
        "out", type=Path, metavar="OUT", help="the file (safetensors) or folder (dcp) to write"
    )
    export.add_argument("--format", choices=("safetensors", "dcp"), default="safetensors")
    export.add_argument("--all", action="store_true", help="optimizers and extra state, too")
    choose(export)
    imports = add("import", "make weights of another tool the first checkpoint of a run", _import)
    imports.add_argument(
        "source", type=Path, metavar="SRC", help="safetensors, a torch.save file, or a DCP folder"
    )
    imports.add_argument("url")
    imports.add_argument("--key", help="where in it the model is, such as model or nets.student")
    imports.add_argument(
        "--strip", default="", metavar="PREFIX", help="what to take off names, such as module."
    )
    imports.add_argument(
        "--allow-pickle", action="store_true", help="read a DCP folder; only from a source that you trust"
    )
    prune = add("prune", "delete older checkpoints, and chunks that none needs", _prune)
    prune.add_argument("url")
    prune.add_argument("--keep-last", type=int, required=True, metavar="N", help="keep the newest N")
    prune.add_argument("--keep-every", type=int, metavar="K", help="and one of every K steps")
    prune.add_argument("--dry-run", action="store_true", help="only say what would be deleted")
    prune.add_argument("--force", action="store_true", help="delete checkpoints that cannot be read, too")
    return parser


class Listed(msgspec.Struct):
    """One line of the list."""

    name: str
    step: int
    claim: int
    state: str
    run: str = ""
    saved_at: str = ""
    tensor_bytes: int | None = None
    new_bytes: int | None = None
    problem: str | None = None
    names: list[str] = []


def _ls(options: argparse.Namespace) -> int:
    vault = open_vault(options.url)
    listed, usage = _listed(vault), vault.usage()
    if options.json:
        _print_json({"url": vault.storage.url, "checkpoints": listed, "usage": usage._asdict()})
        return 0
    table = Table(box=None, header_style="bold")
    for title in ("step", "claim", "age", "size", "new"):
        table.add_column(title, justify="right")
    for title in ("run", "state", "names"):
        table.add_column(title)
    for row in listed:
        sizes = ["" if size is None else size_text(size) for size in (row.tensor_bytes, row.new_bytes)]
        age = age_text(row.saved_at) if row.saved_at else ""
        state = f"[{_COLOURS[row.state]}]{row.state}[/]"
        names = escape(", ".join(row.names))
        table.add_row(str(row.step), str(row.claim), age, *sizes, escape(row.run), state, names)
    console = _console()
    console.print(table)
    console.print(f"{usage.manifests} checkpoints in {size_text(usage.chunk_bytes)} of {usage.chunks} chunks")
    for row in listed:
        if row.problem:
            console.print(row.problem, style="red", markup=False)
    return 0


def _listed(vault: Vault) -> list[Listed]:
    """Newest first."""
    stored = {s.key: s.size_bytes for s in vault.storage.list(CHUNKS)}
    trunk = set(vault.trunk())
    named = names_of(vault)
    rows: list[Listed] = []
    for name in reversed(vault.manifests()):
        found = checkpoint_of(name)
        assert found is not None
        _, manifest, problem = _row(vault, name)
        row = Listed(name, found.step, found.claim, _state(name, manifest, trunk, stored), problem=problem)
        row.names = _shown(named.get(name, []))
        if manifest is not None:
            row.run, row.saved_at = manifest.run, manifest.saved_at
            row.tensor_bytes, row.new_bytes = manifest.tensor_bytes, manifest.new_bytes
        rows.append(row)
    return rows


def _which(options: argparse.Namespace) -> Which:
    if options.which is not None and options.step is not None:
        raise UsageError("give a name or a step once: either behind the URL or with --step")
    return which_of(options.which) if options.step is None else int(options.step)


def _shown(names: list[str]) -> list[str]:
    """For people: those of the script, and that it has ended its run there."""
    own = own_names(names)
    return own if len(own) == len(names) else [*own, "(the end)"]


_COLOURS = {"good": "green", "off trunk": "yellow", "incomplete": "red", "unreadable": "red"}


def _row(vault: Vault, name: str) -> tuple[str, Manifest | None, str | None]:
    try:
        return name, vault.read_manifest(name), None
    except (ObjectDamaged, ObjectMissing) as error:
        return name, None, str(error)


def _state(name: str, manifest: Manifest | None, trunk: set[str], stored: dict[str, int]) -> str:
    if manifest is None:
        return "unreadable"
    if any(stored.get(c.name) != c.stored_bytes for c in manifest.chunks):
        return "incomplete"
    return "good" if name in trunk else "off trunk"


def _show(options: argparse.Namespace) -> int:
    vault = open_vault(options.url)
    name, manifest = find_checkpoint(vault, _which(options), options.claim)
    names = _shown(names_of(vault).get(name, []))
    if options.json:
        document = msgspec.to_builtins(manifest)
        document["image"] = {k: v for k, v in document["image"].items() if k not in ("plain", "structure")}
        _print_json({"name": name, "names": names, **document})
        return 0
    about = Table(box=None, show_header=False)
    stored_bytes = sum({c.hash: c.stored_bytes for c in manifest.chunks}.values())
    for title, value in {
        "checkpoint": name,
        "step": manifest.step,
        "names": ", ".join(names) or "none",
        "run": f"{manifest.run} (lineage {manifest.lineage}, view {manifest.view})",
        "goes on from": manifest.base or "nothing",
        "saved": f"{manifest.saved_at} ({age_text(manifest.saved_at)} ago)",
        "by": ", ".join(f"replica {replica} on {host}" for replica, host in manifest.writers.items()),
        "replicas, shards": f"{manifest.replicas}, {manifest.shards}",
        "versions": ", ".join(f"{what} {version}" for what, version in manifest.versions.items()),
        "size": f"{size_text(manifest.tensor_bytes)}, stored in {size_text(stored_bytes)} "
        f"({len(manifest.chunks)} chunks, {size_text(manifest.new_bytes)} of them new)",
    }.items():
        about.add_row(f"[bold]{title}[/]", escape(str(value)))
    tensors = Table(box=None, header_style="bold")
    for title in ("tensor", "dtype", "shape", "size"):
        tensors.add_column(title, justify="right" if title == "size" else "left", overflow="fold")
    for entry in manifest.image.entries:
        shape = " x ".join(map(str, entry.shape)) or "scalar"
        tensors.add_row(escape(entry.name), entry.dtype, shape, size_text(entry.size_bytes))
    console = _console()
    console.print(about)
    console.print()
    console.print(tensors)
    return 0


def _verify(options: argparse.Namespace) -> int:
    from outlast.state.vault.chunks import verify_chunks

    vault = open_vault(options.url)
    # A checkpoint that was asked for and cannot even be read is a damaged one like others.
    names = vault.manifests() if options.all else [find_name(vault, _which(options), options.claim)]
    rows = [_row(vault, name) for name in names]
    manifests = [(name, manifest) for name, manifest, _ in rows if manifest]
    bad = {name: [reason] for name, _, reason in rows if reason}
    users: dict[str, list[str]] = {}
    chunks: dict[str, tuple[Chunk, Manifest]] = {}
    for name, manifest in manifests:
        for chunk in manifest.chunks:
            key = chunk.name
            chunks.setdefault(key, (chunk, manifest))
            if name not in users.setdefault(key, []):
                users[key].append(name)
    total_bytes = sum(chunk.size for chunk, _ in chunks.values())
    with _progress(total_bytes, quiet=options.json) as progress:
        for _, manifest in manifests:
            own = [chunk for chunk, first in chunks.values() if first is manifest]
            for chunk, reason in verify_chunks(vault.storage, manifest, own, progress=progress):
                for name in users[chunk.name]:
                    bad.setdefault(name, []).append(reason)
    if options.json:
        told = [{"name": name, "ok": name not in bad, "problems": bad.get(name, [])} for name, _, _ in rows]
        _print_json({"ok": not bad, "checkpoints": told, "chunks": len(chunks), "bytes": total_bytes})
    else:
        for name, reasons in bad.items():
            print(f"{name} is damaged:")
            print("\n".join(f"  {reason}" for reason in reasons))
        good = len(rows) - len(bad)
        print(f"{good} of {len(rows)} checkpoints are good; {size_text(total_bytes)} were read.")
    return DAMAGED if bad else 0


def _export(options: argparse.Namespace) -> int:
    from outlast.state.vault.exporting import export_dcp, export_safetensors

    vault = open_vault(options.url)
    _, manifest = find_checkpoint(vault, _which(options), options.claim)
    export = export_dcp if options.format == "dcp" else export_safetensors
    names = export(vault, manifest, options.out, everything=options.all)
    if options.json:
        _print_json({"step": manifest.step, "out": str(options.out), "tensors": names})
    else:
        print(f"{len(names)} tensors of step {manifest.step} are in {options.out}.")
    return 0


def _import(options: argparse.Namespace) -> int:
    from outlast.state.vault.importing import import_weights, read_weights

    vault = Vault(open_storage(options.url))
    weights = read_weights(
        options.source, key=options.key, strip=options.strip, allow_pickle=options.allow_pickle
    )
    manifest = import_weights(vault, weights)
    if options.json:
        _print_json({"tensors": list(weights), "tensor_bytes": manifest.tensor_bytes, "step": manifest.step})
    else:
        print(
            f"{len(weights)} tensors ({size_text(manifest.tensor_bytes)}) are the checkpoint of step 0 in "
            f"{vault.storage.url}. A run that saves there begins with these weights."
        )
    return 0


def _prune(options: argparse.Namespace) -> int:
    from outlast.state.vault.housekeeping import holding_still
    from outlast.state.vault.pruning import prune

    keep = Keep(last=options.keep_last, every=options.keep_every)
    keep.validate()
    vault = open_vault(options.url)
    if options.dry_run:
        pruned = prune(vault, keep, claim=None, force=options.force, dry_run=True)
    else:
        with holding_still(vault, "prune") as claim:
            pruned = prune(vault, keep, claim=claim.number, force=options.force)
    if options.json:
        _print_json({"dry_run": options.dry_run, **msgspec.to_builtins(pruned)})
        return 0
    would = "would be deleted" if options.dry_run else "are deleted"
    print(
        f"{len(pruned.manifests)} checkpoints and {pruned.chunks} chunks ({size_text(pruned.chunk_bytes)}) "
        f"{would}; {len(pruned.kept)} checkpoints stay."
    )
    for problem in pruned.problems:
        print(f"{problem.name} cannot be read: {problem.reason}")
    if pruned.chunks_left_alone:
        print("So nobody knows which chunks it needs, and none is deleted. --force gives it up.")
    return 0


@contextlib.contextmanager
def _progress(total_bytes: int, *, quiet: bool) -> Iterator[Callable[[int], None] | None]:
    """A bar on standard error, if somebody can watch it there."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    columns = (BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=total_bytes)
        yield lambda size_bytes: bar.advance(task, size_bytes)


def _console() -> Console:
    # Piped output is for other programs, which cut lines where they want.
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=200)


def _print_json(told: Any) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(told) + b"\n")
