"""The members' side of a step: contributions out, results in, one round for each attempt.

Used under the engine's lock. Rounds belong to the view in force; a peer may be one step ahead, so there are
at most a few at a time. Frames of a view that is not in force yet are received into memory of their own, held
by the member core, and put into their place when their view is adopted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import Tensor

from outlast.errors import ProtocolError
from outlast.mesh.round import Plan, Round, Scratch, fold
from outlast.protocol import hearing
from outlast.protocol.header import Header
from outlast.protocol.kinds import FINDINGS, Kind, NodeNote, PartNote, decode, encode
from outlast.protocol.seams import Said
from outlast.protocol.step_words import NOTHING_SAID, Trial, Verdict
from outlast.protocol.tree import Node
from outlast.protocol.views import Member, View
from outlast.train.court import Court
from outlast.train.flats import FlatPool
from outlast.train.keepsakes import refuse_to_save_alone
from outlast.train.layout import Layout
from outlast.train.records import Record
from outlast.train.ruling import Ruling, check_part
from outlast.train.screening import Screening
from outlast.train.sums import NodeSum, largest

Send = Callable[[int, Header, memoryview, object, bool], None]
"""(replica, header, memory, keep, more): to a member of the view in force."""

ROUNDS_MOST = 8
"""A peer is at most one step ahead; this is a bound on mistakes."""

WAIT_BYTES = 60 << 10
"""What is no larger waits for the word that follows it (a part follows contributions, a sum follows results),
so that a small model's step costs two messages and not four."""

NO_NODE = Node(0, 0)


class Exchange:
    def __init__(
        self,
        layout: Layout,
        replica: int,
        sums: FlatPool,
        ruling: Ruling | None = None,
        screening: Screening | None = None,
    ) -> None:
        """`sums` is where the vectors of own contributions come from. Without `ruling`, they are added up;
        without `screening`, they are believed."""
        self._ruling = ruling
        self.screening = screening
        self._sums = sums
        self._layout = layout
        self._replica = replica
        self.ship: Send
        self._dtypes = [integer.dtype for integer in layout.integers]
        self._scratch = Scratch(layout.dtype)
        self.vectors = FlatPool(layout.size, layout.dtype)
        self._plan: Plan | None = None
        self._incarnation = 0
        self._rounds: dict[int, Round] = {}
        self._courts: dict[int, Court] = {}

    @property
    def plan(self) -> Plan:
        assert self._plan is not None, "only members have a part in the reduce"
        return self._plan

    @property
    def surveys(self) -> bool:
        """Whether slices are surveyed before they are reduced."""
        return self._ruling is not None and self._ruling.surveys

    @property
    def in_view(self) -> bool:
        return self._plan is not None

    def adopt(self, view: View) -> None:
        """Every attempt of an earlier view is void."""
        self._rounds.clear()
        self._courts.clear()
        member = view.member(self._replica)
        self._incarnation = member.incarnation if member is not None else 0
        self._plan = self._plan_of(view) if member is not None else None

    def _plan_of(self, view: View) -> Plan:
        apart = self._ruling is not None
        screened = self._layout.parameter_buckets if self.screening is not None else 0
        return Plan(
            view,
            self._replica,
            self._layout.buckets,
            apart=apart,
            cells=self.surveys,
            screened=screened,
        )

    def round(self, step: int) -> Round:
        round_ = self._rounds.get(step)
        if round_ is None:
            if len(self._rounds) >= ROUNDS_MOST:
                raise ProtocolError(f"somebody is at step {step}, far ahead of this replica")
            round_ = self._rounds[step] = Round(
                self.plan,
                step,
                scratch=self._scratch,
                vector=self.vectors.take,
                scatter=lambda *scattered: self._scatter(step, *scattered),
                result=lambda bucket, memory: self._result(step, bucket, memory),
                merge=lambda index, one, other: largest(one, other, self._dtypes[index]),
            )
        return round_

    def court(self, step: int) -> Court:
        """Where the contributions to this step are judged."""
        court = self._courts.get(step)
        if court is None:
            assert self.screening is not None
            round_ = self.round(step)

            def reduce(owner: int, bucket: int, contributions: dict[Node, Tensor], out: Tensor) -> None:
                if self._ruling is None:
                    fold(contributions, self.plan.additions, out)
                else:
                    self._ruling.rule_on(round_, owner, bucket, contributions, out)

            court = self._courts[step] = Court(
                round_,
                self._layout,
                self.screening,
                reduce,
                lambda *shown: self._show(step, *shown),
            )
        return court

    # Out.

    def bucket(self, step: int, node: NodeSum, bucket: int) -> None:
        """A bucket of an own sum is there, ahead of the rest."""
        self.round(step).own(node.node, bucket, node.flat, self._lease(node))

    def contribute(self, step: int, nodes: Iterable[NodeSum], said: Said) -> None:
        """Send what has not been sent yet in this attempt, and write down what goes with it."""
        round_ = self.round(step)
        notes = []
        for node in nodes:
            for bucket in range(len(self._layout.buckets)):
                if (node.node, bucket) not in round_.sent:
                    round_.own(node.node, bucket, node.flat, self._lease(node))
            notes.append(self._note(node))
        round_.parts[self._replica] = PartNote(nodes=tuple(notes), **said._asdict())

    def contribute_nothing(self, step: int, said: Said) -> None:
        """This replica has left the loop of steps."""
        self.round(step).parts[self._replica] = PartNote(closing=True, **said._asdict())

    def last_words(self, step: int) -> dict[int, PartNote]:
        """What members have said when all of them had left the loop before this step."""
        parts = self.round(step).parts
        refuse_to_save_alone(parts, step - 1)
        return parts

    def part(self, step: int, trial: int) -> PartNote:
        """What goes with the own part."""
        if trial == Trial.HEARING:
            return self.court(step).parts[self._replica]
        return self.round(step).parts[self._replica] if trial == Trial.FIRST else PartNote()

    def testify(self, step: int, opinions: Iterable[NodeSum]) -> None:
        """Send what was asked for in a hearing."""
        given = list(opinions)
        self.court(step).testify(given, [self._note(opinion) for opinion in given])

    def _show(
        self, step: int, to: int, place: int, bucket: int, node: Node, memory: memoryview, whole: Tensor
    ) -> None:
        header = self._header(Kind.SCATTER, step, bucket, memory, node, flags=Trial.HEARING, offset=place)
        self.ship(to, header, memory, self._sums.lease(whole), False)

    def _note(self, node: NodeSum) -> NodeNote:
        mask = node.mask.to_bytes((len(self._layout.entries) + 7) // 8, "little")
        return NodeNote(node.node.lo, node.node.hi, node.weight, node.loss, mask, node.integers)

    def _lease(self, node: NodeSum) -> object:
        """A frame may wait to be sent while the sum that it is a part of is given up for a larger one, and
        its memory used again: the receiver would get a mixture of both. So frames hold what they send."""
        return self._sums.lease(node.flat) if self.plan.others else None

    def _scatter(
        self, step: int, owner: int, bucket: int, node: Node, memory: memoryview, keep: object
    ) -> None:
        header = self._header(Kind.SCATTER, step, bucket, memory, node)
        self.ship(owner, header, memory, keep, header.size <= WAIT_BYTES)

    def _result(self, step: int, bucket: int, memory: memoryview) -> None:
        header = self._header(Kind.RESULT, step, bucket, memory, flags=self.round(step).trial)
        for owner in self.plan.others:
            self.ship(owner, header, memory, None, header.size <= WAIT_BYTES)

    def _header(
        self,
        kind: Kind,
        step: int,
        bucket: int,
        memory: memoryview,
        node: Node = NO_NODE,
        flags: int = 0,
        offset: int = 0,
    ) -> Header:
        view = self.plan.view.number
        # In the order of its fields: there is one of these for every piece of every gradient of every step.
        return Header(
            kind, flags, bucket, self._incarnation, view, step, node.lo, node.hi, offset, memory.nbytes
        )

    # In.

    def destination(self, sender: Member, header: Header) -> memoryview | None:
        """Where bulk belongs: in its round, or in memory of its own if its view is not in force yet."""
        now = self._plan.view.number if self._plan is not None else 0
        if header.view < now:
            return None
        if header.size > self._layout.size * self._layout.dtype.itemsize:
            raise ProtocolError(f"replica {sender.replica} sends {header.size} bytes, more than a gradient")
        if header.view > now or self._plan is None:
            return memoryview(bytearray(header.size))
        round_ = self.round(header.step)
        if header.kind == Kind.SCATTER:
            node = Node(header.lo, header.hi)
            if header.flags == Trial.HEARING:
                court = self._court_for(sender.replica, header.step)
                return court.slot(sender.replica, header.offset, header.bucket, node, header.size)
            return round_.scatter_slot(sender.replica, header.bucket, node, header.size)
        return round_.result_slot(sender.replica, header.bucket, header.size)

    def takes(self, view: int) -> bool:
        """Whether frames of this view are for a round that is going on."""
        return self._plan is not None and self._plan.view.number == view

    def deliver(self, sender: int, header: Header, payload: memoryview | PartNote | bytes) -> None:
        """A frame of the view in force has come."""
        if self._plan is None:
            return
        round_ = self.round(header.step)
        if header.flags == Trial.HEARING and header.kind != Kind.RESULT:
            self._take_in_hearing(sender, header, payload)
        elif isinstance(payload, PartNote):
            if header.flags == Trial.FIRST:
                check_part(round_.plan, sender, payload)
                round_.parts[sender] = payload
                if self._replica in round_.parts:
                    # All have to hear of it before somebody is out of the view for that, and others go on.
                    refuse_to_save_alone(round_.parts, header.step - 1)
        elif isinstance(payload, bytes):
            if header.kind == Kind.SUM and header.flags == Trial.FIRST and self.screening is not None:
                self.court(header.step).take_numbers(sender, payload)
            elif header.kind == Kind.SURVEY and self._ruling is not None:
                self._ruling.take_survey(round_, sender, payload)
        elif header.kind == Kind.SCATTER:
            round_.scattered(sender, header.bucket, Node(header.lo, header.hi), payload)
        elif header.kind == Kind.RESULT:
            round_.resulted(sender, header.bucket, payload, header.flags)

    def _take_in_hearing(self, sender: int, header: Header, payload: memoryview | PartNote | bytes) -> None:
        court = self._court_for(sender, header.step)
        if isinstance(payload, PartNote):
            court.parts[sender] = payload
        elif isinstance(payload, bytes):
            court.take_findings(sender, decode(FINDINGS, payload))
        else:
            court.shown(sender, header.offset, header.bucket, Node(header.lo, header.hi), payload)

    def _court_for(self, sender: int, step: int) -> Court:
        if self.screening is None:
            raise ProtocolError(f"replica {sender} calls for a hearing, and there are none in this run")
        return self.court(step)

    def own_survey(self, step: int) -> bytes:
        """What goes with the word that the own slice is surveyed."""
        return self.round(step).surveys[self._replica]

    def sum_note(self, step: int, trial: int) -> bytes:
        """What goes with the own sum."""
        if self.screening is None or trial == Trial.FINAL:
            return b""
        court = self.court(step)
        return court.numbers if trial == Trial.FIRST else encode(court.findings)

    def judge(self, step: int, trial: int, seed: int) -> bool | hearing.Verdict:
        """All sums of this trial are in: in the first one, whether there has to be a hearing; after that,
        what it has found."""
        court = self.court(step)
        return court.examine(seed) if trial == Trial.FIRST else court.conclude()

    def survey(self, step: int) -> None:
        """All parts are in: find out what everybody has to know of the own slice."""
        assert self._ruling is not None
        round_ = self.round(step)
        round_.concluded()
        self._ruling.survey(round_)

    def conclude(self, step: int, trial: int = Trial.FIRST) -> None:
        """All parts and surveys are in: see to it that the own slice is with everybody, or look at what is
        shown in a hearing."""
        round_ = self.round(step)
        if trial == Trial.HEARING:
            self.court(step).look()
            return
        round_.concluded()
        refuse_to_save_alone(round_.parts, step - 1)
        round_.trial = trial
        if self._ruling is not None:
            self._ruling.settle(round_)
        elif trial == Trial.FINAL:
            round_.reduce_again()
        if self.screening is not None and trial == Trial.FIRST:
            self.court(step).measure()

    def record(self, step: int, verdict: Verdict = NOTHING_SAID) -> Record:
        """The attempt at this step is complete."""
        round_ = self._rounds.pop(step)
        round_.completed()
        self._courts.pop(step, None)
        record = Record(step, round_.record, round_.note(verdict), self.vectors)
        round_.release()
        return record
