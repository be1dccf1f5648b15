"""What is done to a job, and which job it is: all of it drawn from one number.

A schedule is plain data. It says when each fault strikes (at which step of the run, and how much later), what
it is and whom it strikes; the same seed always gives the same schedule, on any machine. What a fault meets
when it strikes is up to the machine, as in life.

Faults come singly, in pairs (two at the same moment) and in storms (many within a few steps). Some need a
special job: only one with checkpoints has a disk to fill, only one with data workers has workers to kill.
"""

import random
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

KINDS = ("kill", "stop", "hold", "cut", "lose", "add", "full", "slow", "busy", "clock", "exit")
"""kill -9; stop and wake; stop for good; cut a connection; take bytes out of one, or put some in; a disk that
is full, or slow; busy loops; another time of day; an end that the script brings about itself."""
PROCESSES = ("launcher", "coordinator", "agent", "forkserver", "replica", "worker")
EXITS = ("os._exit(0)", "os._exit(3)", "sys.exit(0)", "sys.exit(3)", "raise")

_WEIGHTS = {
    "kill": 6,
    "stop": 4,
    "hold": 2,
    "cut": 4,
    "lose": 1,
    "add": 1,
    "full": 2,
    "slow": 1,
    "busy": 2,
    "clock": 1,
    "exit": 3,
}
_VICTIMS = {"launcher": 1, "coordinator": 3, "agent": 2, "forkserver": 2, "replica": 6, "worker": 2}
_CUTS = 25


@dataclass(frozen=True, kw_only=True)
class Fault:
    kind: str
    step: int
    """It strikes when the run has come to this step,"""
    after_s: float = 0.0
    """and this much later, so that it may fall anywhere in a step."""
    target: str = ""
    """A kind of process; of connections "mesh" or "control"; of disks "vault" (the checkpoints'), "runs"
    (that of all run directories) or "store" (what the coordinator writes)."""
    which: int = 0
    """Which of those that there are, counted round."""
    lasting_s: float = 0.0
    how: str = ""
    """Which exit; which directions of a connection."""
    amount: int = 0
    """Bytes, busy loops, or seconds by which the clock jumps."""

    def describe(self) -> str:
        words = [f"step {self.step:>3} +{self.after_s * 1e3:>2.0f} ms: {self.kind}", self.target]
        words += [f"#{self.which}"] if self.target else []
        words += [self.how, str(self.amount) if self.amount else ""]
        words += [f"for {self.lasting_s:.2f} s"] if self.lasting_s else []
        return " ".join(word for word in words if word)


@dataclass(frozen=True, kw_only=True)
class Schedule:
    seed: int
    replicas: int
    agents: int
    shards: int
    steps: int
    norm: bool
    """Whether the model has BatchNorm, whose statistics are state beside the weights."""
    workers: int
    verify: str
    """ "auto" or "None"."""
    every: int
    """Steps between two checkpoints; 0 for a run without any."""
    faults: tuple[Fault, ...]

    def describe(self) -> str:
        job = (
            f"{self.replicas} replicas of {self.agents} agents, {self.shards} shards, {self.steps} steps, "
            f"{'with' if self.norm else 'without'} BatchNorm, {self.workers} workers, verify={self.verify}, "
            + (f"a checkpoint every {self.every} steps" if self.every else "no checkpoints")
        )
        return "\n".join([f"seed {self.seed}: {job}", *(f"  {fault.describe()}" for fault in self.faults)])

    def has(self, *kinds: str) -> bool:
        return any(fault.kind in kinds for fault in self.faults)


def draw(seed: int, only: Collection[str] = ()) -> Schedule:
    """The schedule of this seed; with `only`, of these kinds of faults alone."""
    rng = random.Random(f"torture-{seed}-{','.join(sorted(only))}")
    job = _job(rng)
    wanted = {kind: weight for kind, weight in _WEIGHTS.items() if not only or kind in only}
    assert wanted, f"{sorted(only)} are no kinds of faults; there are {', '.join(KINDS)}"
    faults: list[Fault] = []
    for step, after_s in _moments(rng, job.steps):
        kind = rng.choices(list(wanted), list(wanted.values()))[0]
        fault = _fault(rng, job, kind, step, after_s)
        if not _too_much(fault, faults):
            faults.append(fault)
    needs_disk = any(fault.target == "vault" for fault in faults)
    return replace(job, seed=seed, every=job.every or 10 * needs_disk, faults=tuple(faults))


def draw_cuts(seed: int) -> Schedule:
    """Nothing but connections between live replicas that are cut, again and again."""
    rng = random.Random(f"cuts-{seed}")
    replicas = 2 + seed % 3
    moments = sorted(rng.sample(range(10, 390), _CUTS))
    faults = (
        Fault(kind="cut", step=step, after_s=rng.uniform(0, 0.02), target="mesh", which=rng.randrange(1000))
        for step in moments
    )
    return Schedule(
        seed=seed,
        replicas=replicas,
        agents=1,
        shards=4,
        steps=400,
        norm=True,
        workers=0,
        verify=("None", "auto")[seed // 3 % 2],
        every=0,
        faults=tuple(faults),
    )


def _job(rng: random.Random) -> Schedule:
    return Schedule(
        seed=0,
        replicas=rng.choice((2, 3, 3, 4)),
        agents=rng.choice((1, 1, 2)),
        shards=4,
        steps=rng.randrange(200, 401, 50),
        norm=rng.random() < 0.5,
        workers=rng.choice((0, 0, 1)),
        verify=rng.choice(("auto", "auto", "None")),
        every=rng.choice((0, 5, 20)),
        faults=(),
    )


def _moments(rng: random.Random, steps: int) -> Iterator[tuple[int, float]]:
    """When faults strike: one here and there, two at a time, or many at once."""
    last = int(steps * 0.85)
    shape = rng.choice(("single", "single", "pairs", "storm"))
    if shape == "storm":
        first = rng.randrange(10, last - 40)
        times = sorted(rng.randrange(first, first + 40) for _ in range(rng.randint(5, 8)))
    else:
        times = sorted(rng.randrange(10, last) for _ in range(rng.randint(1, 3)))
    for step in times:
        yield step, rng.uniform(0, 0.03)
        if shape == "pairs":
            yield step, rng.uniform(0, 0.002)


def _fault(rng: random.Random, job: Schedule, kind: str, step: int, after_s: float) -> Fault:
    victims = {name: weight for name, weight in _VICTIMS.items() if name != "worker" or job.workers}
    target, how, lasting_s, amount = "", "", 0.0, 0
    match kind:
        case "kill":
            target = _one(rng, victims)
        case "stop":
            target, lasting_s = _one(rng, victims), rng.choice((0.1, 0.4, 1.0, 3.0)) * rng.uniform(0.5, 1.5)
        case "hold":
            # A launcher that stands still for good is a job that stands still for good.
            target = _one(rng, {name: weight for name, weight in victims.items() if name != "launcher"})
        case "cut":
            target, how = rng.choice(("mesh", "mesh", "control")), rng.choice(("", "", "", "read", "write"))
        case "lose" | "add":
            target, amount = rng.choice(("mesh", "mesh", "control")), rng.choice((1, 4, 48, 1000))
        case "full":
            target, lasting_s = rng.choice(("vault", "vault", "runs")), rng.uniform(0.5, 3.0)
        case "slow":
            target, lasting_s = rng.choice(("vault", "store")), rng.uniform(1.0, 3.0)
        case "busy":
            lasting_s, amount = rng.uniform(1.0, 4.0), rng.randint(2, 6)
        case "clock":
            amount = rng.choice((-1, 1)) * rng.choice((2, 90, 86_400, 300_000_000))
        case "exit":
            target, how = "replica", rng.choice(EXITS)
    which = rng.randrange(1000)
    return Fault(
        kind=kind,
        step=step,
        after_s=after_s,
        target=target,
        which=which % job.replicas if kind == "exit" else which,
        how=how,
        lasting_s=lasting_s,
        amount=amount,
    )


def _one(rng: random.Random, weights: dict[str, int]) -> str:
    return rng.choices(list(weights), list(weights.values()))[0]


def _too_much(fault: Fault, before: list[Fault]) -> bool:
    """Whether a job may rightly end over this: then it is no fault to survive."""
    same = [other for other in before if (other.kind, other.target) == (fault.kind, fault.target)]
    if fault.kind == "exit":
        # A script that fails twice at one place is taken for one that always does.
        return any(other.which == fault.which or abs(other.step - fault.step) < 2 for other in same)
    if fault.kind == "kill" and fault.target == "launcher":
        return bool(same)
    return len(same) >= 3 and fault.kind in ("kill", "stop", "hold")
