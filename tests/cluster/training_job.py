"""The script of the whole-cluster training tests: small, and with everything that makes exactness hard.

BatchNorm, dropout, random transforms in the dataset, AdamW, a schedule, clipping, a last batch that leaves a
shard empty. A shard takes `--pace` seconds, and in the second half of the run three times as long, until a
file says that the test has had enough of it; the bits do not depend on that. At the end, each replica prints
the hash of its state.
"""

import argparse
import contextlib
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import outlast
from outlast import crashpoints, rules
from outlast.kinship import children_of
from outlast.mesh.round import Round
from outlast.protocol.header import Header
from outlast.protocol.kinds import Kind
from outlast.protocol.post import Post
from outlast.protocol.todos import Give
from outlast.protocol.views import Member
from outlast.state.digest import state_digest
from outlast.testing.crash import crash_by_plan
from outlast.train.gifts import Gifts
from outlast.wire.handover import handover
from outlast.wire.rundir import RunDirectory

RULES: dict[str, rules.Rule] = {
    "trimmed_mean": rules.TrimmedMean(f=1),
    "nnm_trimmed_mean": rules.NNM(f=1) | rules.TrimmedMean(f=1),
    "median": rules.Median(),
    "krum": rules.Krum(f=1),
    "multi_krum": rules.MultiKrum(f=1),
    "mda": rules.MDA(f=1),
    "geometric_median": rules.GeometricMedian(),
    "centred_clipping": rules.CentredClipping(),
    # It needs three voters even to withstand nobody, and the last batch of a pass has three samples.
    "bulyan": rules.Bulyan(f=0),
    "bucketing_median": rules.Bucketing(size=2) | rules.Median(),
    "clip_nnm_trimmed_mean": rules.ClipNorms() | rules.NNM(f=1) | rules.TrimmedMean(f=1),
}
SAMPLES = 99
GLOBAL_BATCH = 24


class Noisy(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """Each look at a sample draws from every generator."""

    def __init__(self, bad: int = -1) -> None:
        self._x = torch.randn(SAMPLES, 16, generator=torch.Generator().manual_seed(5))
        self._bad = bad

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        x = self._x[index]
        sign = -1.0 if random.random() < 0.1 else 1.0
        noise = torch.randn(16) * 0.1 + float(np.random.rand()) * 0.1
        if index == self._bad:
            noise = noise * float("nan")
        return x * sign + noise, int(x.sum() > 0)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 64)
        # Over 4 values of a sample, so that a shard may have a single one.
        self.norm = nn.BatchNorm1d(16)
        self.drop = nn.Dropout(0.1)
        self.last = nn.Linear(64, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.norm(self.first(x).view(-1, 16, 4)).relu().flatten(1)
        return self.last(self.drop(hidden))


def flip_bit(model: nn.Module, optimizer: torch.optim.Optimizer, what: str) -> None:
    """One bit of the mantissa of one number; not the lowest, which the next update may well round away."""
    parameter = list(model.parameters())[-2]
    targets = {
        "parameter": (parameter.data, 12),
        "moment": (optimizer.state[parameter]["exp_avg"], 12),
        # Each step forgets a tenth of what it was, so only a higher one still shows in the end.
        "statistic": (dict(model.named_buffers())["norm.running_var"], 21),
    }
    target, bit = targets[what]
    target.view(-1)[3:4].view(torch.int32).bitwise_xor_(1 << bit)


def strike_at(place: str, *, everything: bool) -> None:
    """Kill others than this process at a crash point: the launcher, and with it all, or the coordinator."""
    point, _, step = place.partition("@")
    given = handover()
    assert given is not None
    launcher = RunDirectory(given.run).read().launcher_pid
    struck = []

    def strike(reached: str, at: int) -> bool:
        # Which steps are saved depends on when others were compared.
        if reached != point or at < int(step) or struck:
            return False
        struck.append(True)
        children = [pid for pid in children_of(launcher) if b"outlast.coordinator" in cmdline(pid)]
        with contextlib.suppress(ProcessLookupError):
            os.kill(launcher if everything else children[0], signal.SIGKILL)
        return everything

    crashpoints.armed = strike


def lie_at(step: int, replica: int, bit: int = 0) -> None:
    """Once, flip a bit of a sum that this replica owns, before it is sent."""
    publish = Round.publish
    lied: list[int] = []

    def lie(round_: Round, bucket: int) -> None:
        if round_.plan.replica == replica and round_.step >= step and not lied:
            lo, hi = round_.plan.slice_of(replica, bucket)
            round_.record.view(torch.int32)[lo + bit % (hi - lo)] ^= 1 << bit
            lied.append(bucket)
        publish(round_, bucket)

    Round.publish = lie  # type: ignore[method-assign]


def lose_at(step: int, replica: int) -> None:
    """Once, a word of this replica to its peers is lost, though nothing is wrong with the connection."""
    send = Post.send
    lost: list[int] = []

    def lose(post: Post, peer: Member, header: Header, *rest: Any, **more: Any) -> None:
        given = handover()
        late = header.kind == Kind.PART and header.step >= step
        if given is not None and given.replica == replica and late and not lost:
            lost.append(header.step)
            print(f"LOST the part of step {header.step}", flush=True)
            return
        send(post, peer, header, *rest, **more)

    Post.send = lose  # type: ignore[method-assign]


def stop_giving(replica: int) -> None:
    """Once, this replica is stopped when it has begun to give its state, and the rest of it is not sent."""
    begin = Gifts.begin
    given = handover()
    stopped: list[Give] = []

    def stop(gifts: Gifts, give: Give) -> None:
        begin(gifts, give)
        if given is not None and given.replica == replica and not gifts.idle and not stopped:
            stopped.append(give)
            print(f"STOPPED while it gives the state to replica {give.pin.to.replica}", flush=True)
            os.kill(os.getpid(), signal.SIGSTOP)

    Gifts.begin = stop  # type: ignore[method-assign]


def cmdline(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--steps", type=int, default=100)
    arguments.add_argument("--shards", type=int)
    arguments.add_argument("--rule", choices=RULES)
    arguments.add_argument("--pace", type=float, default=0.0)
    arguments.add_argument("--enough", type=Path)
    arguments.add_argument("--ledger")
    arguments.add_argument("--workers", type=int, default=0)
    arguments.add_argument("--crash", default="")
    arguments.add_argument(
        "--power-cut", default="", metavar="POINT@STEP", help="everything dies there, or later"
    )
    arguments.add_argument("--strike-coordinator", default="", metavar="POINT@STEP", help="only that dies")
    arguments.add_argument("--checkpoints", nargs="*")
    arguments.add_argument("--every", default="auto")
    arguments.add_argument("--audit", type=float, default=0.0)
    arguments.add_argument(
        "--sick", nargs="*", default=[], metavar="STEP:REPLICA:SHARDS", help="it computes NaN from there"
    )
    arguments.add_argument(
        "--lies", default="", metavar="STEP:REPLICA[:BIT]", help="it flips a bit of its sum there"
    )
    arguments.add_argument(
        "--lose", default="", metavar="STEP:REPLICA", help="a word of this replica is lost there"
    )
    arguments.add_argument(
        "--stop-giving", type=int, metavar="REPLICA", help="it is stopped while it gives a state"
    )
    arguments.add_argument("--bad-sample", type=int, default=-1, help="one that makes NaN for everybody")
    arguments.add_argument("--verify", default="auto")
    arguments.add_argument("--flip", nargs="*", default=[], metavar="REPLICA@STEP:WHAT")
    arguments.add_argument("--fail", default="", metavar="STEP:REPLICA", help="an error of the script's own")
    arguments.add_argument(
        "--exit", default="::", metavar="STEP:REPLICA:HOW", help="it ends there as if all were done"
    )
    options = arguments.parse_args()
    crash_by_plan(options.crash)
    if options.power_cut:
        strike_at(options.power_cut, everything=True)
    if options.strike_coordinator:
        strike_at(options.strike_coordinator, everything=False)
    sickness = {}
    for sick in options.sick:
        first, replica, count = map(int, sick.split(":"))
        sickness[replica] = [first, count]
    if options.lies:
        lie_at(*map(int, options.lies.split(":")))
    if options.lose:
        lose_at(*map(int, options.lose.split(":")))
    if options.stop_giving is not None:
        stop_giving(options.stop_giving)
    fail_step, _, fail_replica = options.fail.partition(":")
    exit_step, exit_replica, exit_how = options.exit.split(":")
    paced = options.pace > 0
    flips = {}
    for flip in options.flip:
        place, _, what = flip.partition(":")
        replica, _, number = place.partition("@")
        flips[int(replica), int(number)] = what

    outlast.seed(3)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 15, 0.8)
    data = outlast.Data(
        Noisy(options.bad_sample), global_batch=GLOBAL_BATCH, seed=7, num_workers=options.workers
    )
    with outlast.join(
        model=model,
        optimizer=optimizer,
        data=data,
        state={"schedule": schedule},
        shards=options.shards,
        rule=RULES.get(options.rule),
        audit=options.audit,
        ledger=options.ledger,
        checkpoints=options.checkpoints or None,
        verify=int(options.verify) if options.verify.isdigit() else options.verify,
        every=int(options.every) if options.every.isdigit() else options.every,
    ) as job:
        print("joined at", job.steps_done, flush=True)
        for step in job.steps(options.steps):
            for x, y in step:
                if paced:
                    time.sleep(options.pace if step.number < options.steps // 2 else 3 * options.pace)
                if str(step.number) == fail_step and fail_replica in ("all", str(job.replica)):
                    raise RuntimeError(f"a mistake at step {step.number}")
                if (str(step.number), str(job.replica)) == (exit_step, exit_replica):
                    {"os._exit": os._exit, "sys.exit": sys.exit}[exit_how](0)
                loss = nn.functional.cross_entropy(model(x), y)
                first, count = sickness.get(job.replica, (0, 0))
                if step.number >= first and count:
                    sickness[job.replica][1] -= 1
                    loss = loss * float("nan")
                step.backward(loss)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            if (job.replica, step.number) in flips:
                # Once, whatever becomes of the step: that is what makes it so hard to find.
                what = flips.pop((job.replica, step.number))
                flip_bit(model, optimizer, what)
                print(f"FLIPPED {what} of replica {job.replica} after step {step.number}", flush=True)
            paced = paced and not (options.enough is not None and options.enough.exists())
    print("SCREENED", job.screened, flush=True)
    print("HASH", state_digest(model, optimizer), flush=True)


if __name__ == "__main__":
    main()
