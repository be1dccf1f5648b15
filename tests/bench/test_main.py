import pytest

from bench.__main__ import BENCHMARKS, parser
from bench.plaincopy import receive


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_says_what_it_measures_and_can_be_asked_for_json(name: str) -> None:
    assert (BENCHMARKS[name].__doc__ or "").partition("\n")[0].endswith(".")
    assert parser().parse_args([name, "--json"]).json


def test_all_benchmarks_can_run_in_one_command() -> None:
    assert parser().parse_args(["all"]).name == "all"


def test_a_plain_copy_takes_some_time() -> None:
    assert receive(1_000_000) > 0
