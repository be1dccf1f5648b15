"""The program of `bench checkpoint`: one training in a process of its own, and yardsticks beside it.

    python bench/saver.py '{"mode": "local", "directory": "/tmp/x", ...}'

Each mode writes what it found to `found.json` in the directory. Yardsticks and saves take turns, and while a
yardstick is held against the machine nothing else is under way in this process.
"""

import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import torch

from bench import rawbytes
from bench.trainee import Trainee, width_for
from outlast.state.storage.opening import open_storage
from outlast.state.vault.occupancy import Process
from outlast.state.vault.vault import Vault
from outlast.train.restoring import find_beginning
from outlast.train.tiers import Tiers

WARM_UP_ROUNDS = 1
CALM_STEPS = 4
STEPS_OF_SETTLING = 2
MANY_FAILURES = 1_000
S3_THREADS = 4
OBJECT_BYTES = 2 << 20

Plan = dict[str, Any]
Found = dict[str, Any]


def local(plan: Plan, directory: Path) -> Found:
    """What saves to a local disk cost training, and how long they take."""
    with _trainee(plan, checkpoints=str(directory / "beside"), keep_last=1) as trainee:
        trainee.step()
        tensors = trainee.tensors()
        copied, memory = rawbytes.Copied(tensors), _pattern(sum(tensor.nbytes for tensor in tensors))
        rounds = []
        for number in range(plan["rounds"] + WARM_UP_ROUNDS):
            found = _save(trainee)
            with trainee.job.aside():
                found["memcpy_s"] = copied.seconds(trainee.tensors())
                found["dcp_s"] = rawbytes.dcp_blocks_s(trainee.state(), directory / "dcp")
                raw = directory / f"raw-{number}"
                found["raw_s"] = rawbytes.write_s(raw, memory)
                raw.unlink()
            print(json.dumps(found), file=sys.stderr, flush=True)
            rounds.append(found)
        return {
            "state_bytes": len(memory),
            "rounds": rounds[WARM_UP_ROUNDS:],
            "delta": _delta(trainee, len(memory)),
        }


def _save(trainee: Trainee) -> Found:
    """One save, and the steps before, with and after the copying."""
    for _ in range(STEPS_OF_SETTLING):
        trainee.step()
    calm = [trainee.step() for _ in range(CALM_STEPS - 1)]
    calm.append(trainee.step_and_decide())
    copying_s = trainee.step()
    after, saved = trainee.until_saved()
    return {
        "calm_s": calm,
        "copying_s": copying_s,
        "after_s": after,
        "save_s": saved.took_s,
        "held_s": saved.held_s,
        "worked_s": saved.worked_s,
        "new_bytes": saved.new_bytes,
    }


def _delta(trainee: Trainee, state_bytes: int) -> float:
    """The share of the bytes that is written if one layer of all has changed since the last save."""
    trainee.step_and_decide()
    trainee.until_saved()
    # That one has the steps since in it, so that it is not the last one which counts.
    trainee.used = 1
    trainee.step_and_decide()
    trainee.until_saved()
    trainee.step_and_decide()
    return trainee.until_saved()[1].new_bytes / state_bytes


def load(plan: Plan, directory: Path) -> Found:
    """How long it takes to have the newest checkpoint of `local` in memory, verified."""
    vault, raw = directory / "vault", directory / "raw"
    manifest = next(iter(Vault(open_storage(vault)).newest()))[1]
    size_bytes = sum(chunk.size for chunk in manifest.chunks)
    rawbytes.write_s(raw, _pattern(size_bytes))
    rounds = []
    for number in range(plan["rounds"] + WARM_UP_ROUNDS):
        found = {}
        for side in ("load_s", "raw_s") if number % 2 else ("raw_s", "load_s"):
            rawbytes.forget(directory)
            found[side] = rawbytes.read_s(raw) if side == "raw_s" else _load_s(vault)
        print(json.dumps(found), file=sys.stderr, flush=True)
        rounds.append(found)
    raw.unlink()
    return {"rounds": rounds[WARM_UP_ROUNDS:]}


def _load_s(vault: Path) -> float:
    begin = time.perf_counter()
    found = find_beginning(
        Tiers([open_storage(vault)]), run="bench", lineage=1, intents=(), process=Process.own()
    )
    took_s = time.perf_counter() - begin
    assert found.state is not None and found.state.complete
    return took_s


def final(plan: Plan, directory: Path) -> Found:
    """How long the save at the end of a run takes, beside one file of as many bytes."""
    vault = directory / "vault"
    memory: memoryview | None = None
    rounds = []
    for number in range(plan["rounds"] + WARM_UP_ROUNDS):
        shutil.rmtree(vault, ignore_errors=True)
        found, size_bytes = _last_save(plan, str(vault))
        memory = memory or _pattern(size_bytes)
        raw = directory / f"raw-{number}"
        found["raw_s"] = rawbytes.write_s(raw, memory)
        raw.unlink()
        print(json.dumps(found), file=sys.stderr, flush=True)
        rounds.append(found)
    return {"rounds": rounds[WARM_UP_ROUNDS:]}


def s3(plan: Plan, directory: Path) -> Found:  # noqa: ARG001
    """The same with an S3 server, beside the same bytes put there by its client alone."""
    from obstore.store import S3Store

    client = S3Store(plan["bucket"], client_options={"allow_http": True})
    memory: memoryview | None = None
    rounds = []
    for number in range(plan["rounds"] + WARM_UP_ROUNDS):
        found, size_bytes = _last_save(plan, f"s3://{plan['bucket']}/vault-{number}")
        memory = memory or _pattern(size_bytes)
        found["raw_s"] = rawbytes.send_s(client, f"raw-{number}", memory, OBJECT_BYTES, S3_THREADS)
        print(json.dumps(found), file=sys.stderr, flush=True)
        rounds.append(found)
    return {"rounds": rounds[WARM_UP_ROUNDS:]}


def _last_save(plan: Plan, url: str) -> tuple[Found, int]:
    """A short run with two saves, of which the last one counts; and the size of its state."""
    with _trainee(plan, checkpoints=url, keep_last=1) as trainee:
        trainee.step_and_decide()
        trainee.until_saved()
        trainee.step()
        size_bytes = sum(tensor.nbytes for tensor in trainee.tensors())
    saved = trainee.saved[-1]
    assert saved.new_bytes > size_bytes // 2, "the last state is another one than that before"
    return {"save_s": saved.took_s, "held_s": saved.held_s, "worked_s": saved.worked_s}, size_bytes


def throughput(plan: Plan, directory: Path) -> Found:
    """Steps in a second with and without saves, in turns.

    A block with saves is one interval long, as `auto` has it, and begins with a save. So many failures are
    pretended that the interval is the shortest that `auto` ever chooses.
    """
    with _trainee(plan, checkpoints=str(directory / "beside"), keep_last=1) as trainee:
        trainee.step_and_decide()
        trainee.until_saved()
        for _ in range(MANY_FAILURES):
            trainee.saving._cadence.failed_over()
        pairs = []
        for number in range(plan["pairs"] + WARM_UP_ROUNDS):
            interval_s = min(trainee.saving._cadence.interval_s(time.monotonic()), plan["longest_s"])
            pair: Found = {"interval_s": interval_s}
            for side in ("on", "off") if number % 2 else ("off", "on"):
                pair[side] = _steps_per_s(trainee, interval_s, saving=side == "on")
                trainee.wait_until_idle()
            pair["saved"] = vars(trainee.saved[-1])
            print(json.dumps(pair), file=sys.stderr, flush=True)
            pairs.append(pair)
        return {"pairs": pairs[WARM_UP_ROUNDS:]}


def _steps_per_s(trainee: Trainee, seconds: float, *, saving: bool) -> float:
    before, count, begin = len(trainee.saved), 0, time.perf_counter()
    while time.perf_counter() - begin < seconds or (saving and len(trainee.saved) == before):
        # The first step of a block decides, as the library would: the interval has passed.
        trainee.step_and_decide() if saving and not count else trainee.step()
        count += 1
    return count / (time.perf_counter() - begin)


def _trainee(plan: Plan, **checkpoints: Any) -> Trainee:
    return Trainee(width_for(plan["state_bytes"]), plan["batch"], **checkpoints)


def _pattern(size_bytes: int) -> memoryview:
    """Bytes that no disk and no server can make less of."""
    block = os.urandom(1 << 20)
    return memoryview(bytearray((block * (size_bytes // len(block) + 1))[:size_bytes]))


MODES = {"local": local, "final": final, "load": load, "s3": s3, "throughput": throughput}


def main() -> None:
    plan = json.loads(sys.argv[1])
    if plan["threads"]:
        torch.set_num_threads(plan["threads"])
    directory = Path(plan["directory"])
    found = MODES[plan["mode"]](plan, directory)
    (directory / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
