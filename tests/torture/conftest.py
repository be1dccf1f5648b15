"""Which schedules are run: a few that are always the same, or those that the command line asks for."""

import pytest
from schedule import KINDS

ALWAYS = [("schedule", 36), ("schedule", 53), ("schedule", 57), ("cuts", 1)]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" not in metafunc.fixturenames:
        return
    options = metafunc.config.option
    cases = ALWAYS
    if options.torture_seed is not None:
        kind = "cuts" if options.torture_cuts else "schedule"
        cases = [(kind, options.torture_seed + number) for number in range(options.torture_count)]
    metafunc.parametrize(("kind", "seed"), cases)


@pytest.fixture
def only(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """The kinds of faults that are wanted; none means all of them."""
    kinds = tuple(filter(None, request.config.getoption("--torture-only").split(",")))
    unknown = set(kinds) - set(KINDS)
    assert not unknown, f"--torture-only: {sorted(unknown)} is no kind of fault; there are {','.join(KINDS)}"
    return kinds
