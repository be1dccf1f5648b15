"""The judge sees what is wrong, and nothing where nothing is."""

from dataclasses import replace

from schedule import Fault, Schedule, draw_cuts
from verdict import failures_of_replicas, wrong_words

CALM = replace(draw_cuts(0), faults=())
FAILED = """\
[1] Traceback (most recent call last):
[0] and another one speaks in between
[1]   File "somewhere.py", line 1, in main
[1] outlast.errors.ProtocolError: step 32: all parts are in
outlast: finished
"""


def planned(how: str, target: str = "replica") -> Schedule:
    return replace(CALM, faults=(Fault(kind="exit", step=3, how=how, target=target),))


def test_a_traceback_is_wrong_unless_it_was_planned() -> None:
    assert wrong_words(CALM, FAILED) == ["a traceback that ends with ProtocolError"]
    raised = FAILED.replace(
        "outlast.errors.ProtocolError: step 32: all parts are in", "__main__.Planned: yes"
    )
    assert wrong_words(planned("raise"), raised) == []
    assert wrong_words(CALM, raised) == ["a traceback that ends with Planned"]


def test_a_charge_is_wrong() -> None:
    charged = "outlast: view 3: members 0 (replica 1 of agent-0, step 7: its state differs from the others)"
    assert len(wrong_words(CALM, charged)) == 1
    assert len(wrong_words(CALM, "[0] step 3: replica 1 at 127.0.0.1:4 is charged: it sent other bits")) == 1
    assert wrong_words(CALM, "outlast: view 2: members 0,1 (replica 1 is cut off from others)") == []


def test_failures_of_replicas_are_found() -> None:
    assert failures_of_replicas("[1] replica 1 exited with status 1\n") == ["replica 1 exited with status 1"]
    assert failures_of_replicas("view 5: members none (replica 0 has finished)") == []
