"""Every benchmark runs, in a form of a few seconds, and prints what it says that it prints.

A figure of so little means nothing, and no bound is judged here. What these tests are for: a benchmark that
nobody ran for a while has a way of not running any more.
"""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.__main__ import BENCHMARKS, described
from servers import etcd
from servers.fixtures import need

ROOT = Path(__file__).parents[2]
KEYS = {
    "checkpoint": {
        "stall_vs_memcpy",
        "stall_vs_memcpy_ci",
        "stall_vs_dcp",
        "stall_vs_dcp_ci",
        "save_vs_raw",
        "save_vs_raw_ci",
        "load_vs_raw",
        "load_vs_raw_ci",
        "delta_bytes_ratio",
        "throughput_ratio",
        "throughput_ratio_ci",
    },
    "footprint": {
        f"{process}_{figure}"
        for process in ("agent", "coordinator")
        for figure in ("import_s", "rss_mb", "cpu_percent")
    },
    "detect": {
        "kill_ms_median",
        "kill_ms_p90",
        "stop_s_p90",
        "hang_s_p90",
        "hang_bound_s",
        "step_s",
        "sched_ms_p99",
    },
    "digests": {"digest_cost_ratio", "digest_cost_ratio_ci", "checksum_share", "extra_bytes_per_param"},
    "failover": {
        "back_s_median",
        "back_s_p90",
        "views_lost",
        "views_reused",
        "views_skipped",
        "replicas_noticed",
    },
    "fleet": {
        "coordinator_core_share",
        "beat_lag_s_p99",
        "death_seen_s_p90",
        "fleet_back_s",
        "fleet_evicted",
        "sim_3000_gather_cpu_s",
        "sim_3000_gather_commits",
        "sim_3000_beat_us",
        "sim_3000_report_us",
        "sim_3000_tick_ms",
        "sim_3000_death_cpu_s",
        "sim_3000_failover_cpu_s",
        "sim_3000_evicted",
        "sim_3000_document_bytes",
    },
    "machines": {
        "coordinator_failover_s_median",
        "etcd_failover_s_median",
        "machine_lost_s_p90",
        "machine_lost_plain_s_p90",
    },
    "load": {"false_evictions", "sched_ms_p99", "slowdown"},
    "overhead": {
        "ratio",
        "ratio_ci",
        "ratio_high",
        "ratio_small",
        "ratio_n2",
        "ratio_small_n2",
        "extra_bytes_per_param",
        "extra_vectors",
    },
    "recovery": {
        "stall_s_median",
        "stall_s_p90",
        "survivor_exits",
        "stall_s_median_n2",
        "stall_s_p90_n2",
    },
    "rejoin": {"gap_ratio", "stream_ratio", "state_mb"},
    "rules": {"x_read_limit"},
    "screening": {"screening_ratio", "screening_ratio_ci", "screening_ratio_small"},
    "byzantine": {"accuracy_drop_points"},
}
MAY_BE = {"checkpoint": {"s3_vs_raw", "s3_vs_raw_ci"}}
"""Where there is a server to be had."""
OF_EVERY = {"benchmark", "ok", "bounds", "details"}
EXTRAS = ("matplotlib", "mnist1d", "sklearn")


def bench(
    *arguments: str, here: Path, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    paths = [(environment or {}).get("PYTHONPATH", ""), str(ROOT), os.environ.get("PYTHONPATH", "")]
    return subprocess.run(
        [sys.executable, "-m", "bench", *arguments],
        env={**os.environ, **(environment or {}), "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        cwd=here,
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_runs_and_prints_its_keys(name: str, tmp_path: Path) -> None:
    run = bench(name, "--tiny", "--json", here=tmp_path)
    assert run.returncode == 0, run.stderr
    found: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    assert found["benchmark"] == name
    figures = found.keys() - OF_EVERY - MAY_BE.get(name, set())
    assert figures == KEYS[name]
    assert found["bounds"].keys() <= found.keys(), "only what was measured is held against a bound"
    if name == "rules":
        assert {"median", "krum", "nnm_trimmed_mean"} <= found["x_read_limit"].keys()
        assert len(found["x_read_limit"]) >= len(found["bounds"]["x_read_limit"])


def test_detection_over_etcd_is_held_against_that_over_a_disk(tmp_path: Path) -> None:
    need(etcd.missing())
    run = bench("detect", "--tiny", "--json", "--store", "etcd", "--kinds", "kill", here=tmp_path)
    assert run.returncode == 0, run.stderr
    found: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    assert found["kill_ms_median_ratio"] > 0
    assert found["bounds"]["kill_ms_median_ratio"]["bound"] == 2.0


@pytest.fixture
def without_extras(tmp_path: Path) -> dict[str, str]:
    """An environment in which these packages are not to be had."""
    for name in EXTRAS:
        missing = f"raise ModuleNotFoundError({f'No module named {name!r}'!r}, name={name!r})\n"
        (tmp_path / f"{name}.py").write_text(missing)
    return {"PYTHONPATH": str(tmp_path)}


def test_a_missing_extra_fails_the_benchmark_that_needs_it(
    without_extras: dict[str, str], tmp_path: Path
) -> None:
    run = bench("byzantine", "--tiny", "--json", here=tmp_path, environment=without_extras)
    assert run.returncode == 1
    assert "byzantine cannot run without matplotlib" in run.stderr
    assert "Traceback" not in run.stderr
    assert run.stdout == ""


@pytest.mark.parametrize("name", [name for name in BENCHMARKS if name != "byzantine"])
def test_a_missing_extra_leaves_the_others_alone(
    name: str, without_extras: dict[str, str], tmp_path: Path
) -> None:
    run = bench(name, "--help", here=tmp_path, environment=without_extras)
    assert run.returncode == 0, run.stderr
    assert described(name).partition("\n")[0] in run.stdout


def test_another_benchmark_runs_where_an_extra_is_missing(
    without_extras: dict[str, str], tmp_path: Path
) -> None:
    run = bench("footprint", "--tiny", "--json", here=tmp_path, environment=without_extras)
    assert run.returncode == 0, run.stderr
    assert KEYS["footprint"] <= json.loads(run.stdout).keys()


def test_nothing_is_imported_before_it_is_asked_for(tmp_path: Path) -> None:
    code = (
        "import sys; from bench.__main__ import parser; parser(());"
        "print([name for name in sys.modules if name.startswith(('bench.', 'torch', 'outlast'))])"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert set(ast.literal_eval(run.stdout)) == {"bench.__main__", "bench.result"}
