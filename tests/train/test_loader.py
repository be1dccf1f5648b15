import multiprocessing.pool
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from sample_datasets import Plain, Unlucky

from outlast.errors import SampleFailed, WorkerDied
from outlast.kinship import alive, children_of
from outlast.train.data import Data
from outlast.train.loader import Loader
from patience import PATIENCE_S


@pytest.fixture(autouse=True)
def no_process_is_left() -> Iterator[None]:
    before = set(children_of(os.getpid()))
    yield
    assert set(children_of(os.getpid())) <= before


def until(condition: Callable[[], bool], within_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.005)


class Traced(Plain):
    """Writes down what is fetched, and by whom."""

    def __init__(self, length: int, path: Path) -> None:
        super().__init__(length)
        self.path = path

    def __getitem__(self, index: int) -> int:
        with open(self.path, "a") as file:
            file.write(f"{index} {os.getpid()}\n")
        return index

    def fetched(self) -> list[int]:
        return (
            [int(line.split()[0]) for line in self.path.read_text().splitlines()]
            if self.path.exists()
            else []
        )


def loader_of(data: Data) -> Loader:
    assert data._loader is not None
    return data._loader


def test_expected_shards_are_fetched_ahead_up_to_the_bound(tmp_path: Path) -> None:
    dataset = Traced(8, tmp_path / "trace")
    with Data(dataset, global_batch=1, shuffle=False, num_workers=1, prefetch=2) as data:
        data.expect([(step, 0) for step in range(1, 9)], 1)
        until(lambda: len(dataset.fetched()) == 2)
        assert data.load(1, 0, 1).tolist() == [0]
        until(lambda: len(dataset.fetched()) == 3)
        assert [data.load(step, 0, 1).item() for step in range(2, 9)] == list(range(1, 8))
    # In order, none twice, and none in this process.
    assert dataset.fetched() == list(range(8))
    assert str(os.getpid()) not in dataset.path.read_text().split()


def test_a_shard_that_nobody_expected_is_loaded_all_the_same() -> None:
    with Data(Plain(64), global_batch=4, shuffle=False, num_workers=2) as data:
        data.expect([(2, 0), (3, 0)], 2)
        assert data.load(9, 1, 2).tolist() == [34, 35]
        assert data.load(2, 0, 2).tolist() == [4, 5]
        assert data.load(2, 0, 4).tolist() == [4]
        assert data.load(2, 0, 2).tolist() == [4, 5]


def test_wrong_expectations_are_dropped_and_memory_stays_bounded() -> None:
    with Data(Plain(1000), global_batch=1, shuffle=False, num_workers=2, prefetch=3) as data:
        for step in range(1, 300):
            data.expect([(step, 0), (step + 500, 0), (step + 300, 0)], 1)
            if step % 7 == 0:
                assert data.load(step + 100, 0, 1).tolist() == [step + 99]
        loader = loader_of(data)
        assert len(loader._asked) + len(loader._answers) <= 3
        data.expect([], 1)
        assert not loader._asked and not loader._answers

        def settled() -> bool:
            loader._take_answers(timeout_s=0)
            return not any(worker.asked or worker.dropped for worker in loader._workers)

        until(settled)
        assert not loader._answers


class Slow(Plain):
    """Sample 0 is done once the gate is there; until then, a mark tells that somebody waits for it."""

    def __init__(self, length: int, gate: Path) -> None:
        super().__init__(length)
        self.gate = gate
        self.waiting = gate.with_suffix(".waiting")

    def __getitem__(self, index: int) -> int:
        while index == 0 and not self.gate.exists():
            self.waiting.touch()
            time.sleep(0.002)
        return index


def test_a_worker_that_is_stuck_does_not_block_the_trainer(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with Data(Slow(5000, gate), global_batch=1, shuffle=False, num_workers=1, prefetch=64) as data:
        # Far more asks and drops than a pipe would hold.
        data.expect([(1, 0)], 1)
        until(gate.with_suffix(".waiting").exists)
        for start in range(1, 3000, 64):
            data.expect([(1, 0), *((start + i, 0) for i in range(1, 64))], 1)
        assert len(loader_of(data)._workers[0].asked) <= 65
        gate.touch()
        assert data.load(4000, 0, 1).tolist() == [3999]


def test_large_and_small_batches_come_through_and_may_be_written_to() -> None:
    class Tensors(Plain):
        def __getitem__(self, index: int) -> dict[str, torch.Tensor | list[torch.Tensor]]:
            return {
                "large": torch.full((200_000,), float(index)),
                "small": torch.tensor([index > 2, False]),
                "half": [torch.full((2, 2), index, dtype=torch.bfloat16)],
                "empty": torch.empty(0),
            }

    data = Data(Tensors(4), global_batch=4, shuffle=False, num_workers=1)
    with data:
        batch = data.load(1, 1, 2)
    # The workers are gone; what they made stays.
    assert batch["large"].shape == (2, 200_000) and batch["large"].sum().item() == 200_000 * 5
    assert batch["small"].tolist() == [[False, False], [True, False]]
    assert batch["half"][0].dtype is torch.bfloat16 and batch["half"][0][1].tolist() == [[3, 3], [3, 3]]
    assert batch["empty"].shape == (2, 0)
    batch["small"].fill_(True)
    batch["large"].zero_()


def test_a_batch_that_cannot_travel_is_an_error_with_a_way_out() -> None:
    data = Data(Plain(4), global_batch=4, collate_fn=lambda samples: lambda: samples, num_workers=1)
    with data, pytest.raises(SampleFailed, match=r"cannot be sent from a worker.*num_workers=0"):
        data.load(1, 0, 1)


def test_a_killed_worker_is_named_with_its_signal_and_shard() -> None:
    dataset = Unlucky(16, bad=9, what=signal.SIGKILL)
    with Data(dataset, global_batch=4, shuffle=False, num_workers=2) as data:
        data.load(1, 0, 2)
        pids = loader_of(data).pids
        with pytest.raises(
            WorkerDied, match=r"Data worker \d \(pid \d+\) was killed by SIGKILL.*step 3, shard 0 of 2"
        ):
            data.load(3, 0, 2)
        # The other worker went with it, and loading may go on with new ones.
        assert not any(map(alive, pids))
        assert data.load(3, 1, 2).tolist() == [10, 11]


def test_a_worker_that_exits_is_named_with_its_status() -> None:
    class Leaving(Plain):
        def __getitem__(self, index: int) -> int:
            os._exit(3)

    with (
        Data(Leaving(4), global_batch=4, num_workers=1) as data,
        pytest.raises(WorkerDied, match="exited with status 3 while it fetched step 1, shard 0 of 1"),
    ):
        data.load(1, 0, 1)


def test_an_idle_worker_that_is_killed_is_noticed() -> None:
    with Data(Plain(8), global_batch=4, num_workers=1) as data:
        data.load(1, 0, 1)
        os.kill(loader_of(data).pids[0], signal.SIGKILL)
        with pytest.raises(WorkerDied, match="SIGKILL"):
            data.load(2, 0, 1)


def test_closing_ends_a_worker_in_the_middle_of_a_sample(tmp_path: Path) -> None:
    dataset = Slow(4, tmp_path / "never")
    with Data(dataset, global_batch=1, shuffle=False, num_workers=2) as data:
        data.expect([(1, 0)], 1)
        until(dataset.waiting.exists)
        pids = loader_of(data).pids
    assert not any(map(alive, pids))


def test_data_that_is_forgotten_leaves_no_worker() -> None:
    data = Data(Plain(4), global_batch=4, num_workers=2)
    data.load(1, 0, 1)
    pids = loader_of(data).pids
    del data
    assert not any(map(alive, pids))


def test_workers_ignore_ctrl_c_and_use_one_thread() -> None:
    class Asking(Plain):
        def __getitem__(self, index: int) -> tuple[int, bool]:
            return torch.get_num_threads(), signal.getsignal(signal.SIGINT) is signal.SIG_IGN

    with Data(Asking(1), global_batch=1, num_workers=1, collate_fn=list) as data:
        assert data.load(1, 0, 1) == [(1, True)]
        os.kill(loader_of(data).pids[0], signal.SIGINT)
        assert data.load(1, 0, 1) == [(1, True)]


def test_workers_started_outside_of_the_main_thread_outlive_that_thread() -> None:
    threads = multiprocessing.pool.ThreadPool(1)
    with Data(Plain(8), global_batch=4, shuffle=False, num_workers=1) as data:
        with threads:
            assert threads.apply(data.load, (1, 0, 1)).tolist() == [0, 1, 2, 3]
        threads.join()
        assert data.load(2, 0, 1).tolist() == [4, 5, 6, 7]


def test_a_forked_copy_of_the_trainer_gets_workers_of_its_own() -> None:
    with Data(Plain(8), global_batch=4, shuffle=False, num_workers=1) as data:
        data.load(1, 0, 1)
        pid = os.fork()
        if pid == 0:
            good = data.load(2, 0, 1).tolist() == [4, 5, 6, 7]
            data.close()
            os._exit(0 if good else 1)
        assert os.waitpid(pid, 0)[1] == 0
        assert data.load(2, 0, 1).tolist() == [4, 5, 6, 7]


def test_workers_of_another_thread_end_with_their_pipe() -> None:
    """Where the kernel cannot help, because the thread that forked may end: no sibling keeps a pipe open."""
    data = Data(Plain(8), global_batch=4, num_workers=3)
    with multiprocessing.pool.ThreadPool(1) as threads:
        threads.apply(data.load, (1, 0, 1))
    workers = loader_of(data)._workers
    for worker in workers:
        worker.pipe.close()
        worker.process.join(PATIENCE_S)
        assert worker.process.exitcode == 0
    data.close()


@pytest.mark.parametrize("stuck", [False, True], ids=["idle", "in the middle of a sample"])
def test_workers_die_with_a_trainer_that_is_killed(tmp_path: Path, stuck: bool) -> None:
    ours, theirs = socket.socketpair()
    code = (
        "import pathlib, signal, socket, sys\n"
        "from test_loader import Data, Slow\n"
        "dataset = Slow(8, pathlib.Path(sys.argv[2]))\n"
        "data = Data(dataset, global_batch=1, shuffle=False, num_workers=3)\n"
        "data.load(2, 0, 1)\n"
        "if sys.argv[3] == 'True':\n"
        "    data.expect([(1, 0)], 1)\n"
        "socket.socket(fileno=int(sys.argv[1])).sendall(' '.join(map(str, data._loader.pids)).encode())\n"
        "signal.pause()\n"
    )
    arguments = [str(theirs.fileno()), str(tmp_path / "never"), str(stuck)]
    trainer = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        pass_fds=[theirs.fileno()],
        cwd=Path(__file__).parent,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
    )
    theirs.close()
    ours.settimeout(PATIENCE_S)
    with ours:
        pids = [int(pid) for pid in ours.recv(4096).split()]
        assert len(pids) == 3 and all(map(alive, pids))
        until(lambda: (tmp_path / "never.waiting").exists() == stuck)
        trainer.kill()
        trainer.wait()
        until(lambda: not any(map(alive, pids)))
