import json
import os
from pathlib import Path

import pytest

from outlast.train.ledger import Ledger
from outlast.train.sampling import SampleOrder

ORDER = SampleOrder(length=10, global_batch=4)


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line_says_who_computed_what_from_which_samples(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    with Ledger(path, ORDER, 2) as ledger:
        ledger.write(step=4, view=3, shards={1: 7, 0: 5}, samples={1: (8, 9)})
        # On disk for all to read before the ledger is closed.
        heading, entry = lines(path)
    assert heading == {"ledger": 1, "shard_count": 2, "run": "", **ORDER.as_dict()}
    assert entry == {"step": 4, "view": 3, "pass": 1, "shards": {"0": 5, "1": 7}, "samples": {"1": [8, 9]}}


def test_the_next_life_goes_on_behind_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    with Ledger(path, ORDER, 2) as ledger:
        ledger.write(step=1, view=1, shards={0: 0, 1: 1}, samples={})
    os.truncate(path, path.stat().st_size - 5)
    with Ledger(path, ORDER, 2) as ledger:
        ledger.write(step=2, view=1, shards={0: 0, 1: 1}, samples={})
    texts = path.read_text().splitlines()
    assert len(texts) == 4 and json.loads(texts[3])["step"] == 2
    with pytest.raises(ValueError, match="delimiter"):
        json.loads(texts[1])


def test_a_line_that_the_disk_refused_is_ended_before_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ledger"
    write = os.write
    with Ledger(path, ORDER, 2) as ledger:
        room = [20, 0]

        def short(fd: int, content: memoryview) -> int:
            if not (size := room.pop(0)):
                raise OSError(28, "No space left on device")
            return write(fd, content[:size])

        monkeypatch.setattr(os, "write", short)
        with pytest.raises(OSError, match="No space"):
            ledger.write(step=1, view=1, shards={0: 0}, samples={})
        monkeypatch.undo()
        ledger.write(step=2, view=1, shards={0: 0}, samples={})
    texts = path.read_text().splitlines()
    assert len(texts) == 3 and len(texts[1]) == 20 and json.loads(texts[2])["step"] == 2
