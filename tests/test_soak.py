"""`make soak`: a target that was interrupted, or ran out of time, goes on where it was."""

import importlib.machinery
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

SOAK = Path(__file__).parent.parent / "scripts" / "soak"
PIECES = [("first",), ("second",), ("third",)]


@pytest.fixture(scope="module")
def soak_script() -> ModuleType:
    loader = importlib.machinery.SourceFileLoader("soak_script", str(SOAK))
    spec = importlib.util.spec_from_loader("soak_script", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["soak_script"] = module
    loader.exec_module(module)
    return module


def run(soak_script: ModuleType, path: Path, *, pieces_of_time: int = 100, bad: str = "") -> list[str]:
    """What is called, when there is time for so many pieces."""
    (round_,) = soak_script.choose([path], None)
    called: list[str] = []

    def call(piece: tuple[str, ...]) -> bool:
        called.extend(piece)
        return piece != (bad,)

    soak_script.run(PIECES, round_, path, call, lambda: float(len(called)), float(pieces_of_time))
    return called


def test_a_target_goes_on_where_it_was(soak_script: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "state" / "target.json"
    assert run(soak_script, path, pieces_of_time=2) == ["first", "second"]
    seed = soak_script.load(path).seed
    assert run(soak_script, path) == ["third"]
    assert soak_script.load(path).complete
    assert soak_script.load(path).seed == seed
    assert run(soak_script, path) == ["first", "second", "third"], "a new round"


def test_an_interrupted_piece_is_run_again(soak_script: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "target.json"

    def interrupted(piece: tuple[str, ...]) -> bool:
        if piece == ("second",):
            raise KeyboardInterrupt
        return True

    (round_,) = soak_script.choose([path], 5)
    with pytest.raises(KeyboardInterrupt):
        soak_script.run(PIECES, round_, path, interrupted, lambda: 0.0, 1.0)
    assert run(soak_script, path) == ["second", "third"]


def test_another_seed_is_another_round(soak_script: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "target.json"
    run(soak_script, path, pieces_of_time=1)
    seed = soak_script.load(path).seed
    assert soak_script.choose([path], seed)[0].done
    assert not soak_script.choose([path], seed + 1)[0].done


def test_a_failure_is_told_at_the_end(
    soak_script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "target.json"
    assert run(soak_script, path, bad="second") == ["first", "second", "third"]
    found = soak_script.load(path)
    assert soak_script.tell({"target": found}) == 1
    assert "failed: pytest --soak -m 'soak or not soak' second" in capsys.readouterr().out
    unfinished = soak_script.Round(1)
    assert soak_script.tell({"target": unfinished}) == soak_script.OUT_OF_TIME


def test_of_several_targets_those_that_are_complete_wait_for_the_others(
    soak_script: ModuleType, tmp_path: Path
) -> None:
    paths = [tmp_path / "one.json", tmp_path / "two.json"]
    run(soak_script, paths[0])
    assert [found.complete for found in soak_script.choose(paths, None)] == [True, False]
    run(soak_script, paths[1])
    assert [found.complete for found in soak_script.choose(paths, None)] == [False, False]


def test_a_state_that_cannot_be_read_is_none(soak_script: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "target.json"
    for text in ("", "{", json.dumps({"seed": 1}), json.dumps([1])):
        path.write_text(text)
        assert soak_script.load(path) is None


def test_every_target_has_pieces(soak_script: ModuleType) -> None:
    for name in soak_script.TARGETS.keys() - {"cluster"}:
        pieces = list(soak_script.TARGETS[name](7))
        assert len(set(pieces)) == len(pieces) > 1
