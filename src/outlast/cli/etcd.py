"""`outlast etcd`: members of an etcd cluster for runs on many machines, without knowing etcd."""

from __future__ import annotations

import argparse
import asyncio
import socket
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from outlast.coordinator.store.etcd import SCHEME, parse, parse_cluster
from outlast.coordinator.store.gateway import Endpoint, Gateway
from outlast.errors import StoreError, UsageError
from outlast.etcd import checking, pruning
from outlast.etcd.checking import Facts, Finding
from outlast.etcd.command import ELECTION_MS, check_election
from outlast.etcd.places import check_name, own_name, parse_members, parse_place
from outlast.etcd.program import find_program, judged
from outlast.etcd.starting import Starter, Wish
from outlast.run.home import home
from outlast.run.words import counted, size

VERSION = 1
STORE = "etcd://HOST:PORT,…"

_EXAMPLES = """three members from nothing, the same command on each of three machines:
  outlast etcd start --members a=10.0.0.1,b=10.0.0.2,c=10.0.0.3 --insecure
one member, to try it:
  outlast etcd start --name a --at 127.0.0.1
one that is lost with its data, replaced (also on another machine):
  outlast etcd start --name b --at 10.0.0.2 --join 10.0.0.1:2379,10.0.0.3:2379 --replace --insecure"""


def main(argv: list[str]) -> int:
    options = _parser().parse_args(argv)
    command: Callable[[argparse.Namespace], int] = options.command
    return command(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="outlast etcd",
        description="Start, check and prune the etcd cluster in which runs on many machines keep what they "
        "agree on. Three members outlast the loss of any one of them.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    chosen = parser.add_subparsers(required=True, metavar="COMMAND", title="commands")
    start = chosen.add_parser(
        "start",
        help="start a member, in the foreground",
        description="Start one member and stay with it; Ctrl-C or SIGTERM ends it in order. Started again, "
        "it goes on from its data. Standard output gets the --store for `outlast run`, as soon as a "
        "majority of the members is there.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    start.set_defaults(command=_start)
    start.add_argument(
        "--name", help="the member's name (the one in --members that is on this machine; or the host's name)"
    )
    start.add_argument(
        "--at",
        metavar="HOST[:CLIENTPORT[:PEERPORT]]",
        help="where others reach it (ports 2379 and 2380); not needed with --members, nor when it has data",
    )
    how = start.add_mutually_exclusive_group()
    how.add_argument(
        "--members",
        metavar="a=HOST,b=HOST,…",
        help="all members of a new cluster, the same list on every machine; HOST may have ports as in --at",
    )
    how.add_argument("--join", metavar="HOST:PORT,…", help="join the running cluster of these members")
    start.add_argument(
        "--replace",
        action="store_true",
        help="with --join: in place of the member of this name, which is lost",
    )
    start.add_argument(
        "--data", type=Path, metavar="DIR", help="where it keeps its data ($OUTLAST_HOME/etcd/NAME)"
    )
    start.add_argument(
        "--bind", metavar="ADDRESS", help="the address to listen on, if it is not that of HOST"
    )
    start.add_argument(
        "--election-ms",
        type=int,
        default=ELECTION_MS,
        metavar="MS",
        help=f"how soon a silent leader is replaced, the same for all members ({ELECTION_MS})",
    )
    start.add_argument(
        "--insecure", action="store_true", help="let other machines reach it, though nothing is encrypted yet"
    )
    check = chosen.add_parser(
        "check",
        help="say whether a cluster can be used, and what to do about what is wrong",
        description="Ask every member of a cluster how it is, and time a few small writes. Ends with 0 if "
        "the cluster can be used, else with 8.",
    )
    check.set_defaults(command=_check)
    check.add_argument("store", metavar=f"{STORE}[/PREFIX]")
    check.add_argument("--json", action="store_true", help="print one JSON object (docs/commands.md)")
    prune = chosen.add_parser(
        "prune",
        help="remove what ended jobs have left in a cluster",
        description="Remove the keys of jobs that have ended, and forget their history. Those that run stay.",
    )
    prune.set_defaults(command=_prune)
    prune.add_argument("store", metavar=f"{STORE}/PREFIX")
    prune.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    prune.add_argument(
        "--abandoned",
        action="store_true",
        help="also jobs that have not ended, if no coordinator leads them; make sure that none will again",
    )
    prune.add_argument(
        "--defrag",
        action="store_true",
        help="give the space back to the disks, one member after the other, and end alarms about space",
    )
    return parser


def _start(options: argparse.Namespace) -> int:
    check_election(options.election_ms)
    members = parse_members(options.members) if options.members else {}
    if options.replace and not options.join:
        raise UsageError("--replace needs --join with the endpoints of members that live")
    name = options.name or _name(members)
    check_name(name)
    wish = Wish(
        name=name,
        folder=(options.data or home() / "etcd" / name).absolute(),
        at=parse_place(options.at) if options.at else None,
        members=members,
        join=_endpoints(options.join) if options.join else (),
        replace=options.replace,
        bind=options.bind,
        insecure=options.insecure,
        election_ms=options.election_ms,
    )
    program = find_program()
    version, warning = judged(program)
    _say(f"{name}: etcd {version}, {program}")
    if warning:
        _say(f"warning: {warning}")
    return asyncio.run(Starter(wish, program, say=_say, show=_show).run())


def _name(members: Any) -> str:
    host = socket.gethostname().partition(".")[0]
    return host if not members or host in members else own_name(members)


def _endpoints(text: str) -> list[Endpoint]:
    return parse_cluster(text if text.startswith(SCHEME) else SCHEME + text)[0]


def _say(text: str) -> None:
    print(f"outlast etcd: {text}", file=sys.stderr, flush=True)


def _show(store: str) -> None:
    print(f"--store {store}", flush=True)


def _check(options: argparse.Namespace) -> int:
    endpoints, _ = parse_cluster(options.store)
    facts = asyncio.run(checking.examine(endpoints))
    findings = checking.judge(facts)
    good = checking.usable(findings)
    if options.json:
        _print_json(facts, findings, good=good)
    else:
        print("\n".join([*_table(facts), *_speed(facts), *_told(findings), _verdict(facts, good=good)]))
    return 0 if good else StoreError.exit_code


def _table(facts: Facts) -> list[str]:
    picture = facts.picture
    leader = picture.leader
    rows = []
    for member in picture.members:
        status, metrics = picture.statuses.get(member.id), facts.metrics.get(member.id)
        where = ",".join(map(str, member.clients)) or ",".join(member.peer_urls)
        if status is None:
            rows.append([member.title, where, "", "does not answer", "", ""])
            continue
        does = "joins" if member.learner else "leads" if member is leader else "follows"
        room = size(status.db_bytes)
        if metrics is not None and metrics.quota_bytes:
            room += f" of {size(metrics.quota_bytes)}"
        rows.append([member.title, where, status.version, does, room, _fsync(facts, member.id)])
    if not rows:
        return []
    rows.insert(0, ["MEMBER", "AT", "VERSION", "DOES", "ON DISK", "FSYNC"])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def _fsync(facts: Facts, member: str) -> str:
    metrics = facts.metrics.get(member)
    if metrics is None or metrics.fsync_mean_s is None:
        return ""
    mean = f"{1000 * metrics.fsync_mean_s:.1f} ms"
    most = metrics.fsync_p99_s
    slow = (
        "" if most is None else f", 99 % within {1000 * most:.0f} ms" if most < 1e6 else ", some for seconds"
    )
    return f"{mean}{slow}"


def _speed(facts: Facts) -> list[str]:
    if not facts.writes_s:
        return []
    median, worst = (1000 * one for one in (statistics.median(facts.writes_s), max(facts.writes_s)))
    return [
        f"{counted(len(facts.writes_s), 'small write')}: {median:.1f} ms (median), {worst:.1f} ms (worst)"
    ]


def _told(findings: list[Finding]) -> list[str]:
    lines = []
    for finding in findings:
        lines.append(f"{finding.severity}: {finding.text}")
        if finding.do:
            lines.append(f"  → {finding.do}")
    return lines


def _verdict(facts: Facts, *, good: bool) -> str:
    if not good:
        return "it cannot be used like this"
    voters, answering = len(facts.picture.voters), len(facts.picture.answering)
    spare = answering - (voters // 2 + 1)
    answer = "answers" if answering == 1 else "answer"
    return (
        f"it can be used; {answering} of {counted(voters, 'member')} {answer}, and {spare} more may be lost"
    )


def _print_json(facts: Facts, findings: list[Finding], *, good: bool) -> None:
    picture = facts.picture
    leader = picture.leader
    members = []
    for member in picture.members:
        status, metrics = picture.statuses.get(member.id), facts.metrics.get(member.id)
        members.append(
            {
                "name": member.name,
                "endpoints": [str(endpoint) for endpoint in member.clients],
                "answers": status is not None,
                "why": picture.silent.get(member.id) or None,
                "version": status.version if status else None,
                "leads": member is leader,
                "votes": not member.learner,
                "size_bytes": status.db_bytes if status else None,
                "used_bytes": status.used_bytes if status else None,
                "quota_bytes": metrics.quota_bytes if metrics else None,
                "fsync_mean_s": metrics.fsync_mean_s if metrics else None,
                "fsync_p99_s": metrics.fsync_p99_s if metrics else None,
                "alarms": [alarm for number, alarm in facts.alarms if number == member.id],
            }
        )
    told = {
        "version": VERSION,
        "usable": good,
        "members": members,
        "write_median_s": statistics.median(facts.writes_s) if facts.writes_s else None,
        "write_worst_s": max(facts.writes_s, default=None),
        "findings": [{"severity": one.severity, "text": one.text, "do": one.do or None} for one in findings],
    }
    sys.stdout.write(msgspec.json.encode(told).decode() + "\n")


def _prune(options: argparse.Namespace) -> int:
    return asyncio.run(_pruned(options))


async def _pruned(options: argparse.Namespace) -> int:
    endpoints, prefix = parse(options.store)
    gateway = Gateway(endpoints)
    try:
        jobs = await pruning.find_jobs(gateway, prefix, abandoned=options.abandoned)
        removed = []
        for job in jobs:
            if not job.prunable:
                hint = "; --abandoned removes it" if "leads it" in job.state else ""
                print(f"kept {job.name} ({job.state}{hint})")
                continue
            keys = job.keys if options.dry_run else await pruning.remove(gateway, job)
            if not keys:
                print(f"kept {job.name} (it has changed meanwhile)")
                continue
            print(f"{'would remove' if options.dry_run else 'removed'} {job.name} ({job.state})")
            removed.append(job)
        done = "would be removed" if options.dry_run else "removed"
        print(f"{counted(len(removed), 'job')} {done}, {len(jobs) - len(removed)} kept")
        if not options.dry_run and (removed or options.defrag):
            await pruning.compact(gateway)
    finally:
        await gateway.close()
    if options.defrag and not options.dry_run:
        await pruning.defragment(endpoints, print)
    return 0
