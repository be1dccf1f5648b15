"""Checkpoints of a job of one process: saved beside the steps, resumed by themselves, exact to the bit."""

import logging
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from trained_alone import Trained, net, saved, steps_saved, without_checkpoints

import outlast
from outlast.errors import ConfigError, StorageFull
from outlast.state.fingerprint import Fingerprint
from outlast.state.storage.files import Files
from outlast.state.vault.manifest import ZSTD_SHUFFLE
from outlast.train import assembly, writing
from outlast.train.copying import ShareCopy
from patience import PATIENCE_S

WAIT_S = PATIENCE_S


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """What survives a power cut is not the matter here."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


def wait_until_gone(before: list[threading.Thread]) -> None:
    """Until there are no other threads than before. Those of a storage stay for the next call for a while."""
    deadline = time.monotonic() + WAIT_S
    while [thread for thread in threading.enumerate() if thread not in before]:
        assert time.monotonic() < deadline, "a notebook goes on without them"
        time.sleep(0.01)


def test_a_run_that_is_resumed_ends_in_the_same_bits_as_one_that_was_not_interrupted(tmp_path: Path) -> None:
    threads = threading.enumerate()
    Trained(tmp_path, 5)
    assert steps_saved(tmp_path)[-1] == 5, "the last state is saved, whatever `every` says"
    resumed = Trained(tmp_path, 9)
    assert resumed.began_at == 5 and resumed.digest == without_checkpoints(9)
    assert steps_saved(tmp_path)[-1] == 9
    wait_until_gone(threads)


def test_a_run_that_has_all_its_steps_saves_nothing_new(tmp_path: Path) -> None:
    Trained(tmp_path, 4)
    before = saved(tmp_path)
    assert Trained(tmp_path, 4).began_at == 4
    assert saved(tmp_path) == before


def test_without_shards_a_resumed_run_cuts_its_steps_as_before(tmp_path: Path) -> None:
    Trained(tmp_path, 3, shards=4)
    Trained(tmp_path, 5, shards=None)
    assert [manifest.shards for manifest in saved(tmp_path)][-1] == 4
    with pytest.raises(ConfigError, match=r"4 shards.*into 2"):
        Trained(tmp_path, 7, shards=2)


def test_another_model_is_refused_with_the_difference(tmp_path: Path) -> None:
    Trained(tmp_path, 3)
    with pytest.raises(ConfigError, match=r"0\.weight|\[8, 6\]|\(8, 6\)"):
        Trained(tmp_path, 5, width=9)
    assert Trained(tmp_path, 5).began_at == 3, "and nothing was lost by that"


def test_a_machine_that_computes_other_bits_may_resume_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    Trained(tmp_path, 3)
    own = assembly.take_fingerprint()
    fields = {name: getattr(own, name) for name in own.__struct_fields__}
    changed = next(name for name, value in fields.items() if isinstance(value, str))
    monkeypatch.setattr(
        assembly, "take_fingerprint", lambda: Fingerprint(**{**fields, changed: "something else"})
    )
    with caplog.at_level(logging.WARNING):
        assert Trained(tmp_path, 4).began_at == 3
    assert "other bits are computed" in caplog.text


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    Trained(tmp_path, 12, every=1, keep_last=2)
    assert len(steps_saved(tmp_path)) == 2 and steps_saved(tmp_path)[-1] == 12


def test_compressed_chunks_are_resumed_from(tmp_path: Path) -> None:
    Trained(tmp_path, 3, compress=True)
    assert {chunk.codec for chunk in saved(tmp_path)[-1].chunks} == {ZSTD_SHUFFLE}
    assert Trained(tmp_path, 6).digest == without_checkpoints(6)


def test_several_places_hold_the_same(tmp_path: Path) -> None:
    near, far = tmp_path / "near", tmp_path / "far"
    Trained([near, far], 4)
    assert steps_saved(near)[-1] == steps_saved(far)[-1] == 4
    for path in (near / "chunks").rglob("*"):
        if path.is_file():
            path.unlink()
    assert Trained([near, far], 6).began_at == 4


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"every": 0}, "every=500"),
        ({"every": "soon"}, "every=500"),
        ({"keep_last": 0}, "last"),
        ({"keep_every": 0}, "every"),
        ({"folder": ""}, "empty"),
        ({"folder": "ftp://host/x"}, "ftp"),
        ({"folder": []}, "checkpoints"),
    ],
)
def test_wrong_settings_are_told_at_once(tmp_path: Path, options: dict[str, Any], complaint: str) -> None:
    folder = options.pop("folder", tmp_path)
    with pytest.raises(ConfigError, match=complaint):
        Trained(folder, 1, **options)


def fail_puts(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    puts = Files.put

    def put(self: Files, key: str, data: Any) -> None:
        if key.startswith("chunks/"):
            raise error
        puts(self, key, data)

    monkeypatch.setattr(Files, "put", put)


def test_a_storage_that_is_full_costs_checkpoints_and_not_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fail_puts(monkeypatch, StorageFull("no space is left at the test"))
    with caplog.at_level(logging.WARNING):
        trained = Trained(tmp_path, 6)
    assert trained.digest == without_checkpoints(6) and steps_saved(tmp_path) == []
    loud = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(loud) == 1 and "is NOT saved: no space is left at the test" in loud[0]
    monkeypatch.undo()
    assert Trained(tmp_path, 6).began_at == 0, "in the same process, as in a notebook"
    assert steps_saved(tmp_path)[-1] == 6


def test_a_copy_that_cannot_be_made_costs_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_room(*_: object, **__: object) -> None:
        raise RuntimeError("can't allocate memory")

    monkeypatch.setattr(writing, "ShareCopy", no_room)
    with caplog.at_level(logging.WARNING):
        trained = Trained(tmp_path, 4)
    assert trained.digest == without_checkpoints(4)
    assert "can't allocate memory" in caplog.text


def test_a_loop_that_fails_leaves_no_threads_and_what_was_saved(tmp_path: Path) -> None:
    threads = threading.enumerate()

    class Fails(Trained):
        def stepped(self, job: outlast.Job) -> None:
            if job.steps_done == 4:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        Fails(tmp_path, 9)
    wait_until_gone(threads)
    assert Trained(tmp_path, 9).digest == without_checkpoints(9)


def test_a_room_is_not_used_again_while_somebody_may_still_write_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A save is given up while its chunks are being put: the next copy must not change what is on its way."""
    rooms: list[object] = []
    held = threading.Event()
    begin, puts = ShareCopy.__init__, Files.put
    slow: list[bytes] = []

    def note(self: ShareCopy, image: Any, tensors: Any, mine: Any, room: Any, **more: Any) -> None:
        rooms.append(room)
        begin(self, image, tensors, mine, room, **more)

    def put(self: Files, key: str, data: Any) -> None:
        if key.startswith("chunks/") and not slow:
            slow.append(bytes(data))
            assert held.wait(WAIT_S)
            assert bytes(data) == slow[0], "somebody wrote into the memory of a put"
        puts(self, key, data)

    monkeypatch.setattr(ShareCopy, "__init__", note)
    monkeypatch.setattr(Files, "put", put)

    class GivesUp(Trained):
        def stepped(self, job: outlast.Job) -> None:
            engine = job._parts.engine
            saver = engine._saving
            assert saver is not None
            if len(rooms) == 1 and slow and saver._job is not None and not held.is_set():
                step = saver._job.save.step
                with engine._changed:
                    engine.driver.act(
                        engine.driver.participant.save_failed(step, "given up by the test", 0.0)
                    )
                    # What a member that knows nothing of the writer would decide.
                    engine.driver.act(engine.driver.participant.save_decided(engine.applied + 1, 1, 0.0))
            elif len(rooms) > 1:
                held.set()

    GivesUp(tmp_path, 25, every=1)
    held.set()
    assert len(rooms) > 1 and rooms[0] is not rooms[1]
    assert saved(tmp_path)[-1].step == 25
    assert len({id(room) for room in rooms}) < len(rooms), "most of the time there is one room"


def test_what_may_have_been_deleted_is_written_again(tmp_path: Path) -> None:
    """After a save whose end is not known, nothing counts as stored."""

    class Fails(Trained):
        def stepped(self, job: outlast.Job) -> None:
            engine = job._parts.engine
            saver = engine._saving
            assert saver is not None
            with engine._changed:
                if saver._job is not None:
                    engine.driver.act(engine.driver.participant.save_failed(saver._job.save.step, "x", 0.0))
                    assert saver._writing.known is None

    Fails(tmp_path, 6, every=1)
    assert Trained(tmp_path, 8).digest == without_checkpoints(8)


def test_what_was_read_elsewhere_is_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk that is whole in the second place only is not relied on in the first."""
    original = net

    def with_a_frozen_layer(width: int) -> nn.Module:
        model = original(width)
        model.add_module("frozen", nn.Sequential())
        model.frozen.register_buffer("table", torch.arange(1 << 19, dtype=torch.float32))
        return model

    monkeypatch.setitem(globals(), "net", with_a_frozen_layer)
    places = [tmp_path / "near", tmp_path / "far"]
    Trained(places, 4)
    for chunk in (tmp_path / "near" / "chunks").glob("*/*"):
        # Rotten, and of the right size.
        chunk.write_bytes(bytes(chunk.stat().st_size))
    assert Trained(places, 8, keep_last=1).began_at == 4
    assert [manifest.step for manifest in saved(tmp_path / "near")] == [8]
    assert Trained(tmp_path / "near", 9).began_at == 8
