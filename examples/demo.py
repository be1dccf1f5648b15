"""Four replicas train, and three times one of them is killed: what `make demo` shows.

First the training runs in one process, undisturbed. Then it runs as four replicas on this machine. A random
one is killed with -9 at a random step; the others go on, it comes back, gets the state from them and takes
part again. After three such deaths the run ends, and its weights must be those of the first, bit for bit.
"""

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import outlast
from outlast.testing.cluster import LocalCluster
from outlast.train.audit import merge_ledgers

REPLICAS = 4
DEATHS = 3
STEPS = 400


def train(folder: Path | None = None) -> str:
    """Tell two spirals apart; returns a hash of everything that was learnt.

    With a folder, each replica leaves its hash and its ledger there, and pauses for each shard, so that there
    is time to watch, until the folder holds a file named "hurry".
    """
    torch.set_num_threads(1)
    outlast.seed(0)
    arm = torch.arange(1000) % 2
    turn = torch.rand(1000) * 8
    angle = turn + arm * torch.pi
    points = torch.stack([turn * angle.cos(), turn * angle.sin()], 1) / 8 + torch.randn(1000, 2) * 0.02
    data = outlast.Data(TensorDataset(points, arm), global_batch=64, seed=0)
    first, second = nn.Linear(2, 64), nn.Linear(64, 64)
    model = nn.Sequential(
        first, nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.1), second, nn.ReLU(), nn.Linear(64, 2)
    )
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    ledger = str(folder / "ledgers") if folder else None
    with outlast.join(model=model, optimizer=opt, data=data, shards=REPLICAS, ledger=ledger) as job:
        for step in job.steps(STEPS):
            for where, which in step:
                step.backward(F.cross_entropy(model(where), which))
                if folder and not (folder / "hurry").exists():
                    time.sleep(0.05)
            opt.step()
            opt.zero_grad()
            if folder and job.chief and step.number % 100 == 0:
                print(f"step {step.number}: loss {step.loss:.4f}, {job.members} replicas train", flush=True)
        digest = outlast.state_digest(model, opt)
        if folder:
            (folder / f"hash-{job.replica}").write_text(digest)
    return digest


def kill_one(cluster: LocalCluster, chance: random.Random) -> None:
    """Kill a random replica after a random number of steps, and wait until it trains again."""
    cluster.wait_for_steps(*range(REPLICAS), more=chance.randint(10, 60))
    victim = chance.randrange(REPLICAS)
    status = cluster.wait_for_members(set(range(REPLICAS)))
    life = next(member.incarnation for member in status.view.members if member.replica == victim)
    killed_s = time.monotonic()
    pid = cluster.kill(victim)
    tell(f"kill -9 {pid}: that was replica {victim}, at step {max(cluster.steps().values())}")
    cluster.wait_for_life(victim, life + 1)
    took_s, step = time.monotonic() - killed_s, max(cluster.steps().values())
    tell(f"replica {victim} is back after {took_s:.1f} s; training has gone on to step {step}")


def tell(what: str) -> None:
    print(f"demo: {what}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill replicas of a training run, and compare its weights.")
    parser.add_argument("--seed", type=int, default=random.randrange(1000), help="decides who dies when")
    parser.add_argument("--train", type=Path, metavar="FOLDER", help="be a replica of the demo's training")
    options = parser.parse_args()
    if options.train is not None:
        train(options.train)
        return 0
    chance = random.Random(options.seed)
    tell(f"{STEPS} steps in one process, without faults")
    undisturbed = train()
    tell(
        f"the same as {REPLICAS} replicas; {DEATHS} times one of them will be killed (--seed {options.seed})"
    )
    with tempfile.TemporaryDirectory(prefix="outlast-demo-") as name:
        folder = Path(name)
        program = [__file__, "--train", name]
        with LocalCluster(REPLICAS, program, options=["--plain"], show=True) as cluster:
            for _ in range(DEATHS):
                kill_one(cluster, chance)
            tell("that was the last one; the pauses end here")
            (folder / "hurry").touch()
            code = cluster.wait(60)
        hashes = {path.read_text() for path in folder.glob("hash-*")}
        audit = merge_ledgers((folder / "ledgers").iterdir())
    for line in audit.describe().splitlines():
        tell(line)
    tell(f"without faults:  {undisturbed[:40]}")
    for found in hashes:
        tell(f"with {DEATHS} deaths:   {found[:40]}")
    same = code == 0 and hashes == {undisturbed} and audit.ok
    tell("the same weights, statistics and optimizer state, bit for bit" if same else "THAT IS NOT THE SAME")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
