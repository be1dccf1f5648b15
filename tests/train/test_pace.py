from outlast.train.pace import CALM_LEAST, LIMIT, Pace


def walk(pace: Pace, *gaps_s: float, start: float = 0.0) -> tuple[float, list[float | None]]:
    """Steps that take so long; the time after them, and what each has told."""
    now, told = start, []
    for gap_s in gaps_s:
        now += gap_s
        told.append(pace.step(now))
    return now, told


def calm(pace: Pace, step_s: float = 1.0) -> float:
    pace.step(0.0)
    now, told = walk(pace, *[step_s] * CALM_LEAST)
    assert told == [None] * CALM_LEAST
    return now


def test_a_save_costs_what_its_steps_took_longer_up_to_the_one_in_which_it_ended() -> None:
    pace = Pace()
    now = calm(pace)
    pace.save_decided()
    now, told = walk(pace, 1.5, 1.25, start=now)
    assert told == [None, None]
    pace.save_ended()
    now, told = walk(pace, 1.125, 1.0, start=now)
    assert told == [0.875, None]


def test_steps_of_saves_are_not_what_later_ones_are_compared_with() -> None:
    pace = Pace()
    now = calm(pace)
    for _ in range(2):
        pace.save_decided()
        pace.save_ended()
        now, told = walk(pace, 2.0, 1.0, start=now)
        assert told == [1.0, None]


def test_an_evaluation_during_a_save_does_not_count_for_more_than_a_few_steps() -> None:
    pace = Pace()
    now = calm(pace)
    pace.save_decided()
    pace.save_ended()
    assert walk(pace, 1000.0, start=now)[1] == [LIMIT - 1.0]


def test_a_save_never_gains_time() -> None:
    pace = Pace()
    now = calm(pace)
    pace.save_decided()
    pace.save_ended()
    assert walk(pace, 0.5, start=now)[1] == [0.0]


def test_without_steps_to_compare_with_nothing_is_said() -> None:
    pace = Pace()
    pace.step(0.0)
    pace.save_decided()
    pace.save_ended()
    assert walk(pace, 1.0)[1] == [None]


def test_a_save_that_ends_before_it_was_decided_here_is_none() -> None:
    pace = Pace()
    now = calm(pace)
    pace.save_ended()
    assert walk(pace, 5.0, start=now)[1] == [None]
