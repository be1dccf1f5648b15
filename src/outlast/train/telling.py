"""What the cores say to peers, as frames: each word with what goes with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from outlast.mesh.frames import Header
from outlast.mesh.kinds import HoldingNote, Kind, encode
from outlast.protocol import saving
from outlast.protocol.step_words import (
    Body,
    Ending,
    Gone,
    Holding,
    Part,
    Sum,
    Surveyed,
    Switched,
    Want,
    Whole,
)
from outlast.protocol.views import View
from outlast.train.exchange import Exchange
from outlast.train.giving import Giving
from outlast.train.post import Post
from outlast.train.records import Record


class MakesHeader(Protocol):
    """A header of the present life and view."""

    def __call__(self, kind: Kind, step: int = 0, flags: int = 0) -> Header: ...


class Telling:
    """Used under the engine's lock."""

    def __init__(
        self,
        exchange: Exchange,
        giving: Giving,
        post: Post,
        header: MakesHeader,
        records: Mapping[int, Record],
    ) -> None:
        self._exchange = exchange
        self._giving = giving
        self._post = post
        self._header = header
        self._records = records

    def say(self, view: View, to: tuple[int, ...], body: Body) -> None:
        if not to:
            return
        peers = [m for m in (*view.members, *view.learners) if m.replica in to]
        match body:
            case Part():
                note = self._exchange.part(body.step, body.trial)
                self._post.all(peers, self._header(Kind.PART, body.step, body.trial), encode(note))
            case Surveyed():
                survey = self._exchange.round(body.step).surveys[self._exchange.plan.replica]
                self._post.all(peers, self._header(Kind.SURVEY, body.step, body.trial), survey)
            case Sum():
                note_ = self._exchange.sum_note(body.step, body.trial)
                self._post.all(peers, self._header(Kind.SUM, body.step, body.trial), note_)
            case Holding():
                # Blank is -1, and a header has no negative numbers.
                flags = 1 if body.running else 0
                header = self._header(Kind.HOLDING, body.newest + 1)._replace(flags=flags)
                self._post.all(peers, header, encode(HoldingNote(body.verified, body.fork)))
            case Ending():
                self._post.all(peers, self._header(Kind.ENDING, body.step), encode(body.check))
            case Want():
                self._post.all(peers, self._header(Kind.WANT, body.step))
            case Gone():
                self._post.all(peers, self._header(Kind.GONE, body.step))
            case Switched():
                self._post.all(peers, self._header(Kind.SWITCHED), encode(body.view))
            case Whole():
                self._giving.answer(peers, self._records[body.step], self._header(Kind.NOTE))
            case _:
                raise AssertionError(f"{body} is said by what carries it")

    def say_save(self, view: View, to: tuple[int, ...], body: saving.SaveBody) -> None:
        peers = [m for m in view.members if m.replica in to]
        match body:
            case saving.Stripe():
                header = self._header(Kind.STRIPE, body.step)._replace(offset=body.lineage)
                self._post.all(peers, header, body.payload)
            case saving.Unable():
                header = self._header(Kind.UNABLE, body.step)._replace(flags=1 if body.again else 0)
                self._post.all(peers, header, encode(body.reason))
            case saving.Saved():
                self._post.all(peers, self._header(Kind.SAVED, body.step)._replace(offset=body.later))
