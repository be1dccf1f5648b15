"""The crowd reads a view once for everybody, and nothing else for a view."""

import pytest

from bench.crowd import Sightings, view_number
from outlast.protocol.messages import BeatAck, Message, ReportAck, ViewNews
from outlast.protocol.views import Member, View
from outlast.wire.control import CONTROL


@pytest.mark.parametrize("number", [0, 1, 127, 128, 255, 256, 65535, 65536, 1 << 31])
def test_the_number_of_a_view_is_found_without_reading_it(number: int) -> None:
    assert view_number(CONTROL.encode(ViewNews(view=View(number=number)))) == number


@pytest.mark.parametrize("message", [BeatAck(number=7, view=3), ReportAck(view=3)])
def test_other_messages_are_no_views(message: Message) -> None:
    assert view_number(CONTROL.encode(message)) is None
    assert Sightings().decode(CONTROL.encode(message)) == message


def test_it_is_known_who_has_heard_that_a_life_is_over() -> None:
    sightings = Sightings()
    both = View(number=4, members=(Member(0, 1), Member(1, 1)))
    one = View(number=5, members=(Member(0, 1),))
    again = View(number=6, members=(Member(0, 1),), learners=(Member(1, 2),))
    for at, (replica, view) in enumerate([(0, both), (2, both), (0, one), (1, again), (2, again)]):
        news = sightings.decode(CONTROL.encode(ViewNews(view=view)))
        assert isinstance(news, ViewNews)
        sightings.note(replica, news.view, float(at))
    assert sightings.without(1, 1, after=4) == (2, 4.0), "by the view itself, or by a later one"
    assert sightings.without(0, 1, after=4) == (0, 0.0)
