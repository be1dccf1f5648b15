"""Whether a job that was tortured came to what a quiet one comes to, and what it said on the way.

Everything that is wrong is found and told, not only the first thing: it is the whole picture that shows where
to look.
"""

import re
from collections.abc import Iterable
from pathlib import Path

from quiet import quiet_run
from schedule import Schedule

from outlast.train.audit import merge_ledgers

MOST = 12
"""Things of one kind that are told; more of them say nothing new."""
_CHARGED = re.compile(
    r".*(?:replica \d+ of \S+, step \d+: |is charged|states? (?:of members )?differs?\b|was wrong here).*"
)
_ERROR = re.compile(r"([\w.]*\.)?([A-Z]\w+)(: .*)?")


def wrong_results(schedule: Schedule, traces: Path, stdout: str, stderr: str) -> list[str]:
    """Every loss that any replica saw, in any life, and the digest that each of them ended with."""
    quiet = quiet_run(schedule.shards, schedule.norm)
    anew = "a new lineage begins" in stderr
    found = []
    seen: set[int] = set()
    for trace in sorted(traces.glob("*.trace")):
        steps, wrong = [], []
        for line in trace.read_text().splitlines():
            match line.split():
                case ["loss", number, loss]:
                    # A process that was fenced joins again, and gets its state from the others.
                    if steps and int(number) <= steps[-1] and not anew:
                        found.append(f"{trace.name}: step {number} comes after step {steps[-1]}")
                    steps.append(int(number))
                    wrong += [f"{loss} in step {number}"] if loss != quiet.losses[int(number)] else []
        seen.update(steps)
        if wrong:
            found.append(f"{trace.name}: {len(wrong)} losses are wrong; the first is {wrong[0]}")
    if missing := sorted(set(range(1, schedule.steps + 1)) - seen):
        found.append(f"nobody saw {len(missing)} of the steps; the first is {missing[0]}")
    wanted = quiet.digests[schedule.steps]
    digests = re.findall(r"\[ *(\d+)\] DIGEST (\w+)", stdout)
    if not digests:
        found.append("nobody came to the end with a digest")
    found += [
        f"replica {who} ended with {what}, not with {wanted}" for who, what in digests if what != wanted
    ]
    for replica in sorted(set(re.findall(r"replica (\d+) has finished", stderr)) - dict(digests).keys()):
        found.append(f"replica {replica} is said to have finished, and did not come to the end")
    return found


def wrong_ledgers(schedule: Schedule, ledgers: Path) -> list[str]:
    audit = merge_ledgers(sorted(ledgers.glob("*.ledger")))
    if audit.ok and audit.steps == schedule.steps:
        return []
    return [f"the ledgers do not prove that each sample was used once: {audit.describe()}"]


def wrong_words(schedule: Schedule, said: str) -> list[str]:
    """Nobody is charged, since nobody was made to compute wrongly; nothing of ours fails with a traceback."""
    found = [f"somebody is charged: {line}" for line in said.splitlines() if _CHARGED.fullmatch(line)]
    found += [line for line in said.splitlines() if "please report" in line.lower()]
    planned = {"Planned"} if schedule.has("exit") else set()
    if any("sys.exit" in fault.how for fault in schedule.faults):
        planned |= {"SystemExit", "LoopError"}
    if any(fault.target == "worker" for fault in schedule.faults):
        # What the replica found at its end of the worker's pipe is told as the cause.
        planned |= {"WorkerDied", "LoopError", "EOFError", "ConnectionResetError", "BrokenPipeError"}
    found += [f"a traceback that ends with {error}" for error in _errors(said) if error not in planned]
    return sorted(set(found))[:MOST]


def failures_of_replicas(said: str) -> list[str]:
    """Replicas that came to an end of their own before the end."""
    return re.findall(r"replica \d+ (?:exited with status [1-9]|was killed by).*", said)


def _errors(said: str) -> Iterable[str]:
    """What each traceback ended with, by replica or part, whose lines may be mixed with those of others."""
    open_: dict[str, bool] = {}
    for line in said.splitlines():
        prefix = re.match(r"\[ *\d+\] |[\w-]+: |", line)
        whose = prefix[0] if prefix is not None else ""
        rest = line[len(whose) :]
        if rest.startswith("Traceback (most recent call last)"):
            open_[whose] = True
        elif open_.get(whose) and not rest.startswith(" ") and (error := _ERROR.fullmatch(rest)):
            open_[whose] = False
            yield error[2]
    yield from ("nothing that was said" for whose, still in open_.items() if still)
