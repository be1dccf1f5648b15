"""`scripts/versus`: which figures of two libraries are compared, and how."""

import importlib.machinery
import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

VERSUS = Path(__file__).parent.parent / "scripts" / "versus"


@pytest.fixture(scope="module")
def versus() -> ModuleType:
    loader = importlib.machinery.SourceFileLoader("versus_script", str(VERSUS))
    spec = importlib.util.spec_from_loader("versus_script", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["versus_script"] = module
    loader.exec_module(module)
    return module


def test_times_ratios_and_rates_are_compared(versus: ModuleType) -> None:
    found = {
        "benchmark": "some",
        "ratio": 1.5,
        "ratio_ci": [1.4, 1.6],
        "stall_s_median_n3": 0.2,
        "stall_vs_memcpy": 2,
        "survivor_exits": 0,
        "extra_bytes_per_param": 8,
        "ok": True,
        "bounds": {"ratio": {"bound": 1.0, "measured": 1.5, "ok": False}},
        "details": {
            "pairs": 8,
            "n2": {"cpu_ratio": 1.2, "ddp_ms": {"count": 3, "min": 1.0, "median": 2.0, "max": 4.0}},
            "steps_per_s": {"count": 3, "median": 30.0},
        },
    }
    assert versus.figures(found) == {
        "ratio": 1.5,
        "stall_s_median_n3": 0.2,
        "stall_vs_memcpy": 2.0,
        "details.n2.cpu_ratio": 1.2,
        "details.n2.ddp_ms": 2.0,
        "details.steps_per_s": 30.0,
    }


def test_a_ratio_is_taken_within_each_pair(versus: ModuleType) -> None:
    """The machine was ten times as slow in the second pair, and that does not count."""
    pairs = [({"step_s": old}, {"step_s": new}) for old, new in ((1.0, 1.1), (10.0, 12.0), (1.0, 1.3))]
    old, new, ratio, count = versus.compare(pairs)["step_s"]
    assert (old, new, count) == (1.0, 1.3, 3)
    assert ratio.median == pytest.approx(1.2)
    assert (ratio.low, ratio.high) == (pytest.approx(1.1), pytest.approx(1.3))


def test_nothing_is_said_of_what_took_no_time_or_is_not_there(versus: ModuleType) -> None:
    pairs = [({"step_s": 0.0, "old_s": 1.0}, {"step_s": 1.0}), ({"step_s": 2.0}, {"step_s": 1.0})]
    compared = versus.compare(pairs)
    assert compared.keys() == {"step_s"}
    assert compared["step_s"][2].median == 0.5
    assert compared["step_s"][3] == 1


def test_a_table_has_a_line_for_each_figure(versus: ModuleType) -> None:
    compared = versus.compare([({"step_s": 2.0, "ratio": 1.0}, {"step_s": 3.0, "ratio": 1.0})])
    head, first, second = versus.table("some", compared).splitlines()
    assert head.startswith("some")
    assert first.split() == ["step_s", "2", "3", "1.500", "1.500", "to", "1.500", "1"]
    assert second.split()[0] == "ratio"


def test_the_worktree_is_removed_whatever_happens(
    versus: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git = ["git", "-C", str(tmp_path), "-c", "user.name=test", "-c", "user.email=test@example.org"]
    subprocess.run([*git, "init", "--quiet"], check=True)
    (tmp_path / "file").write_text("committed")
    subprocess.run([*git, "add", "file"], check=True)
    subprocess.run([*git, "commit", "--quiet", "--message", "A file"], check=True)
    (tmp_path / "file").write_text("changed")
    monkeypatch.setattr(versus, "ROOT", tmp_path)
    trees: list[Path] = []

    def be_interrupted() -> None:
        with versus.worktree("HEAD") as tree:
            trees.append(tree)
            assert (tree / "file").read_text() == "committed"
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        be_interrupted()
    assert not trees[0].parent.exists()
    listed = subprocess.run([*git, "worktree", "list"], check=True, capture_output=True, text=True)
    assert len(listed.stdout.splitlines()) == 1
