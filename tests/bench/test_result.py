import json

from bench.result import Result


def test_a_figure_at_its_bound_is_ok_and_one_above_is_not() -> None:
    result = Result(name="x", figures={"a": 1.0, "b": 1.1}, bounds={"a": 1.0, "b": 1.0})
    assert result.within("a") and not result.within("b") and not result.ok


def test_a_figure_at_its_floor_is_ok_and_one_below_is_not() -> None:
    result = Result(name="x", figures={"a": 1.0, "b": 0.9}, floors={"a": 1.0, "b": 1.0})
    assert result.within("a") and not result.within("b") and not result.ok
    assert result.as_dict()["bounds"]["b"] == {"bound": 1.0, "measured": 0.9, "ok": False}


def test_the_json_is_one_line_with_the_figures_at_the_top() -> None:
    result = Result(name="x", figures={"a": 0.123456}, bounds={"a": 1.0}, details={"n": 3})
    text = result.as_json()
    assert "\n" not in text
    assert json.loads(text) == {
        "benchmark": "x",
        "a": 0.1235,
        "ok": True,
        "bounds": {"a": {"bound": 1.0, "measured": 0.1235, "ok": True}},
        "details": {"n": 3},
    }


def test_large_figures_keep_all_their_whole_digits() -> None:
    result = Result(name="x", figures={"count": 123456, "rate": 123456.7})
    found = result.as_dict()
    assert found["count"] == 123456
    assert found["rate"] == 123457


def test_a_figure_may_be_one_for_each_of_several_and_bounds_may_be_floors() -> None:
    figures = {"slower": {"a": 2.0, "b": 4.0, "c": 9.0}, "faster": {"a": 9.0, "b": 12.0}}
    result = Result(
        name="x", figures=figures, bounds={"slower": {"a": 3.0, "b": 4.0}}, floors={"faster": {"b": 10.0}}
    )
    assert result.ok and result.within("slower") and result.within("faster")
    found = result.as_dict()
    assert found["slower"] == figures["slower"]
    assert found["bounds"]["slower"] == {
        "a": {"bound": 3.0, "measured": 2.0, "ok": True},
        "b": {"bound": 4.0, "measured": 4.0, "ok": True},
    }
    assert not Result(name="x", figures=figures, floors={"faster": {"a": 10.0}}).ok
