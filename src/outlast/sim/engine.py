"""What drives a `Participant` in the simulator, as the engine of a training process does with tensors.

It performs what the cores want done, in order, and thinks no further. A record is a number that is different
for every attempt (each owner draws its sum anew), so that a history that splits is seen at once, whether or
not redoing a step would have given the same bits.

Three rules of the real engine are modelled here:

- *The view that an action belongs to is that of the last `Adopt` performed*, not the one that the core has
  reached meanwhile: in one event a core may complete a step and switch.
- *A connection that broke is broken for the rest of the era*, even if there is a new one (see
  `protocol/lines.py`): what was lost on it is never sent again, nothing that crosses the gap counts in either
  direction, and whoever noticed says so until a view interrupts. Who sends without a connection has noticed,
  too; so nothing of a view is ever lost unnoticed.
- *Feeds and snapshots are outside of views*, but bound to the life that they are for. One that misses a piece
  of them does not wait for ever: it comes back as a new life.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from outlast.protocol import member, saving
from outlast.protocol import step_words as words
from outlast.protocol.messages import Phase
from outlast.protocol.participant import Action, Participant
from outlast.protocol.steps import StepCore
from outlast.protocol.views import Member, View
from outlast.sim.checkers import require
from outlast.sim.doubts import Doubts, Values
from outlast.sim.keepers import Keeper
from outlast.sim.saver import Saver
from outlast.sim.trainer import Trainer

if TYPE_CHECKING:
    from outlast.sim.replica import ReplicaNode

WATCHDOG_S = 3.0
"""A learner that lacks something and sees nothing of it for this long gives up and comes back."""

PIECES = 2
"""Messages in which one server's share of a snapshot travels."""


@dataclass(frozen=True)
class Piece:
    """A part of a snapshot."""

    view: int
    step: int
    server: int
    servers: int
    number: int
    digest: int
    claim: int
    """Part of the state: under which claim it is saved."""
    bent: bool
    warp: int
    chief: int
    final: bool
    """Whether members have compared it, as what the run ends with."""

    @property
    def key(self) -> tuple[int, int]:
        return self.server, self.number


@dataclass(frozen=True)
class Share:
    """One member's share of a record, for those who had no part in it."""

    view: int
    step: int
    index: int
    count: int
    record: int
    handed: bool


@dataclass(frozen=True)
class FedFrom:
    """Feeds begin again here, and this is the newest record there is."""

    step: int
    top: int


@dataclass(frozen=True)
class LearnerLoaded:
    learner: Member


@dataclass(frozen=True)
class Founding:
    """Whoever finds out what the lineage begins with is still at it."""


@dataclass(frozen=True)
class Gap:
    """What is said in this era does not count any more."""

    era: int


Free = Piece | Share | FedFrom | LearnerLoaded | Founding | Gap


class Engine:
    """One life of a replica: it is thrown away as a whole when the life is over."""

    def __init__(self, node: ReplicaNode, participant: Participant) -> None:
        self.node = node
        self.participant = participant
        self.view = View()
        self.records: dict[int, int] = {}
        self.broken: set[tuple[int, int]] = set()
        """Lives that the connection with broke in this era."""
        self._gaps_said: set[tuple[int, int, int]] = set()
        self._gaps_ahead: dict[tuple[int, int], int] = {}
        """Lives that are ahead, and the era in which there is a gap."""
        self.trainer = Trainer(self)
        self.saver: Saver = node.sim.cast.saver(self)
        self.keeper: Keeper = node.sim.cast.keeper(self)
        self.over = False
        self._early: list[tuple[int, member.Frame]] = []
        """What came before the first view did, and for which life."""
        self.doubts: Doubts = node.sim.cast.doubts(self)
        # By view, step and trial.
        self._sums: dict[tuple[int, int, int], dict[int, int]] = {}
        self._surveys: dict[tuple[int, int, int], dict[int, int]] = {}
        self._offers: dict[int, tuple[int, int]] = {}
        """Stable records that were fed: in which view, and what."""
        self._given: dict[tuple[int, int], int] = {}
        self._shares: dict[tuple[int, int, bool], dict[int, int]] = {}
        self._pieces: dict[tuple[int, int], Piece] = {}
        self._todo: deque[Action] = deque()
        self._busy = False
        self._told_lost: tuple[frozenset[int], frozenset[int]] = (frozenset(), frozenset())
        self._moved_at = node.sim.world.now
        self._stands_at: tuple[object, ...] = ()

    @property
    def core(self) -> StepCore:
        return self.participant.steps

    @property
    def me(self) -> Member:
        return Member(self.node.replica, self.participant.member.incarnation)

    @property
    def trains(self) -> bool:
        """Whether this life holds the training state, as a member."""
        return not self.over and self.participant.member.is_member and not self.participant.member.catching_up

    def perform(self, actions: Iterable[Action]) -> None:
        """Do this, after what is being done, and then whatever follows from it."""
        self._todo.extend(actions)
        if self._busy:
            return
        self._busy = True
        while self.node.up and not self.over:
            if self._todo:
                self._do(self._todo.popleft())
            elif (lost := self.cut_off()) != self._told_lost:
                self._told_lost = lost
                self._todo.extend(self.participant.peers_lost(lost[0], self.node.sim.world.now, lost[1]))
            else:
                break
        self._busy = False
        if self.node.up and not self.over:
            self._forget()
            self.trainer.poke()

    def cut_off(self) -> tuple[frozenset[int], frozenset[int]]:
        """Members that this life cannot reach, or could not in this era; and those of them that are back."""
        unreachable = self.node.sim.unreachable(self.node)
        members = {m.replica: m.incarnation for m in self.view.members}
        torn = frozenset(replica for replica, life in self.broken if members.get(replica) == life)
        back = frozenset(r for r in torn - unreachable if self._is_up(r, members[r]))
        return torn | unreachable, back

    def _is_up(self, replica: int, incarnation: int) -> bool:
        peer = self.node.sim.replica_node(replica)
        return peer is not None and peer.up and peer.core.incarnation == incarnation

    def _do(self, action: Action) -> None:
        sim = self.node.sim
        match action:
            case member.Adopt():
                self._adopt(action.view, in_band=action.in_band)
            case member.Deliver():
                sim.checkers.delivered(self, action.frame)
                self._take(action.frame)
            case words.Say():
                self._say(action)
            case words.Found():
                self.saver.found()
            case member.MayBegin():
                self.saver.may_begin(action.foundation)
            case saving.SaySave():
                for replica in action.to:
                    # Who is out of the view by now needs no word.
                    if self.view.member(replica) is not None:
                        self._send(self.view.member(replica), action.body)
            case saving.SavedByOther():
                pass
            case saving.Copy() | saving.Intend() | saving.Commit() | saving.Ended():
                self.saver.do(action)
            case words.Attempt():
                if action.trial == words.Trial.FIRST:
                    sim.history.attempts(self, action.step)
                if action.trial == words.Trial.FIRST or self._is_witness(action.trial):
                    self.trainer.attempt(action.step, action.trial)
                else:
                    self._todo.extend(self.participant.contribute(sim.world.now, action.trial))
            case words.Survey():
                self._survey(action.step, action.trial)
            case words.Conclude():
                self._conclude(action.step, action.trial)
            case words.Judge():
                self._judge(action.step, action.trial)
            case words.Completed():
                self._completed(action.step, action.verdict)
            case words.Digest():
                self.trainer.copy_at(action.step)
            case words.Verified():
                self.keeper.verified(action.step)
                if action.kept:
                    sim.truth.verified(self, action.step)
            case words.Differ():
                sim.truth.differs(self, action)
            case words.GoBack():
                sim.truth.goes_back(self, action.fork, action.step)
                sim.history.goes_back(self, action.step)
                self.keeper.go_back(action.fork.step)
                self.records.clear()
                self._offers.clear()
                self._pieces = {k: p for k, p in self._pieces.items() if p.view == self.view.number}
                self.trainer.go_back(action.step, action.fork.step)
                self._look_at_pieces()
            case words.EndReached():
                self.trainer.ended = action.step
            case words.Accused():
                sim.truth.accuses(self, action.member, action.step)
            case words.Dropped():
                pass
            case words.Stable():
                sim.history.stable(self, action.step)
            case words.Pin() if self.node.replica in action.servers:
                self.trainer.pin(action, self.view.number)
            case words.Feed():
                self._feed(action.step)
            case words.FeedAgain():
                self._feed_again(action)
            case words.HandOver() if self.node.replica in action.servers:
                record = self.records[action.step]
                index, count = action.servers.index(self.node.replica), len(action.servers)
                share = Share(self.view.number, action.step, index, count, record, True)
                for replica in action.to:
                    self._send(self.view.member(replica), share)
                if sim.on_hand_over is not None:
                    sim.on_hand_over(action.servers)
            case words.AllDone():
                self.trainer.ending.all_done()
            case words.LeftAlone():
                sim.history.left_alone(self, action.others)
            case words.Lost():
                self.node.lose(action.reason)
            case _:
                self.node.perform(action)

    def _adopt(self, view: View, *, in_band: bool) -> None:
        if view.planned_since != self.view.planned_since:
            # The cores have forgotten what they were told.
            self._told_lost = (frozenset(), frozenset())
            self._gaps_said.clear()
            self.broken = {life for life, era in self._gaps_ahead.items() if era == view.planned_since}
        self.view = view
        self.node.sim.checkers.adopted(self.node, view)
        way = "switches to" if in_band else "adopts"
        self.node.sim.world.note(self.node.name, f"{way} view {view.number}, holding {self.core.newest}")
        self._sums = {key: sums for key, sums in self._sums.items() if key[0] >= view.number}
        self._surveys.clear()
        self._given.clear()
        self.doubts.adopt()
        self.trainer.view_changed()
        early, self._early = self._early, []
        for incarnation, frame in early:
            # One that was meant for a life of the process before has not come over this one's connections.
            if incarnation == self.me.incarnation:
                self.receive(incarnation, frame)

    def _is_witness(self, trial: int) -> bool:
        if trial != words.Trial.HEARING or not self.doubts.asked():
            return False
        # The training thread waits, or hangs; from here on others wait for it.
        self.node.enter(Phase.COMPUTING, by_itself=False)
        return True

    # What is said to peers.

    def _say(self, say: words.Say) -> None:
        payload: object = 0
        match say.body:
            case words.Part(step=step, trial=trial):
                payload = () if say.body.closing else self.doubts.part(step, trial)
            case words.Surveyed(step, trial):
                payload = self._surveys[self.view.number, step, trial][self.node.replica]
            case words.Sum(step, trial):
                payload = self._sums[self.view.number, step, trial][self.node.replica]
            case words.Whole(step):
                payload = self.whole(step)
        for replica in say.to:
            self._send(self.view.member(replica) or self.view.learner(replica), say.body, payload)

    def whole(self, step: int) -> int:
        """The record of this step, for one who lacks it."""
        return self.records[step]

    def _send(
        self, to: Member | None, body: words.Body | saving.SaveBody | Free, payload: object = 0
    ) -> None:
        assert to is not None
        if (to.replica, to.incarnation) in self.broken:
            self._say_gap(to.replica, to.incarnation)
            return
        peer = self.node.sim.replica_node(to.replica)
        me, moves = self.me, isinstance(body, words.Holding) and not body.running
        frame = member.Frame(me.replica, me.incarnation, self.view.number, body, payload, moves)
        lost = self.node.sim.on_word
        if lost is not None and isinstance(body, words.Body) and lost(self, to, body):
            return
        sent = peer is not None and self.node.sim.mesh.send(
            self.node, peer, peer.receive_frame, to.incarnation, frame
        )
        if not sent:
            self.lost_connection(to.replica)

    def _say_gap(self, replica: int, incarnation: int) -> None:
        """The other end may not know; said once on every connection."""
        peer, me, sim = self.node.sim.replica_node(replica), self.me, self.node.sim
        said = (replica, incarnation, sim.mesh.heard_breaks(self.node, peer) if peer is not None else 0)
        frame = member.Frame(me.replica, me.incarnation, self.view.number, Gap(self.view.planned_since))
        if said not in self._gaps_said and sim.mesh.send(
            self.node, peer, peer.receive_frame if peer is not None else None, incarnation, frame
        ):
            self._gaps_said.add(said)

    def _hear_gap(self, frame: member.Frame, era: int) -> None:
        life = (frame.sender, frame.incarnation)
        if era > self.view.planned_since:
            self._gaps_ahead[life] = era
        elif era == self.view.planned_since:
            self.broken.add(life)
            self.perform([])

    def lost_connection(self, replica: int) -> None:
        peer = self.view.member(replica) or self.view.learner(replica)
        if peer is not None:
            self.broken.add((peer.replica, peer.incarnation))

    def receive(self, incarnation: int, frame: member.Frame) -> None:
        """Something from a peer, for this life."""
        crosses = (frame.sender, frame.incarnation) in self.broken and frame.view <= self.view.number
        now = self.node.sim.world.now
        body = frame.body
        if isinstance(body, Gap) and not self.over:
            self._hear_gap(frame, body.era)
        if self.over or crosses or isinstance(body, Gap):
            return
        if isinstance(body, Free) and not self.view.number:
            # It is for a life that peers have heard of before this process did.
            self._early.append((incarnation, frame))
            return
        match body:
            case Piece():
                self._receive_piece(body)
            case Share():
                self._receive_share(body, frame)
            case FedFrom():
                actions = self.participant.fed_from(frame.view, body.step, body.top, now)
                self._offers = {
                    step: offer
                    for step, offer in self._offers.items()
                    if not self.core.undone(step, offer[0])
                }
                self.perform(actions)
            case Founding():
                self._moved_at = now
            case LearnerLoaded():
                self.perform(self.participant.learner_loaded(body.learner, now))
            case words.Switched():
                self.perform(self.participant.switched(body.view, now))
            case words.Whole():
                assert isinstance(frame.payload, int)
                whole = words.Whole(body.step, self.node.sim.truth.said(frame.payload))
                self.perform(self.participant.frame(replace(frame, body=whole), now))
            case _:
                self.perform(self.participant.frame(frame, now))

    def _take(self, frame: member.Frame) -> None:
        """What a frame carries counts once the core has let the frame pass."""
        token = cast(int, frame.payload)
        match frame.body:
            case words.Part(step=step, trial=trial):
                self.doubts.take(step, trial, frame.sender, cast(Values, frame.payload))
            case words.Surveyed(step, trial):
                self._surveys.setdefault((frame.view, step, trial), {})[frame.sender] = token
            case words.Sum(step, trial):
                self._sums.setdefault((frame.view, step, trial), {})[frame.sender] = token
            case words.Whole(step) | words.Handed(step):
                self._given[frame.view, step] = token

    # One step.

    def _survey(self, step: int, trial: int) -> None:
        if self.core.view.number != self.view.number:
            return
        token = self.node.sim.world.chance.getrandbits(40)
        self._surveys.setdefault((self.view.number, step, trial), {})[self.node.replica] = token
        self.perform(self.participant.surveyed(step, self.node.sim.world.now, trial))

    def _conclude(self, step: int, trial: int) -> None:
        if self.core.view.number != self.view.number:
            return
        surveys = self._surveys.pop((self.view.number, step, trial), None)
        if surveys is not None:
            self.node.sim.history.judges(self, step, trial, surveys)
        token = self.node.sim.world.chance.getrandbits(40)
        self._sums.setdefault((self.view.number, step, trial), {})[self.node.replica] = token
        self.perform(self.participant.summed(step, self.node.sim.world.now, trial))

    def _judge(self, step: int, trial: int) -> None:
        if self.core.view.number != self.view.number:
            return
        again = self.doubts.judge(step, trial)
        if again is not None:
            self.perform(self.participant.judged(step, trial, self.node.sim.world.now, again=again))

    def _completed(self, step: int, verdict: words.Verdict) -> None:
        number = self.view.number
        trials = [self._sums.pop((number, step, trial), {}) for trial in words.Trial]
        members = [m.replica for m in self.view.members]
        left_out = self.doubts.left_out.pop((number, step), frozenset())
        used = words.Trial.FINAL if left_out else words.Trial.FIRST
        sums = trials[used]
        by_attempt = self.node.replica in members and all(replica in sums for replica in members)
        if by_attempt:
            record = hash((number, step, *(sums[replica] for replica in members)))
            self.node.sim.history.counts(self, step, self.doubts.first(step), left_out)
        else:
            # Others have made it: it came in this view, in answer or handed over, or was fed as a stable one.
            record = self._given.get((self.view.number, step)) or self._offers.get(step, (0, 0))[1]
        require(record != 0, f"{self.node.name} has no record of step {step}, though it shall be complete")
        self.records[step] = record
        self._offers.pop(step, None)
        if by_attempt:
            self.node.sim.vault.completed_in[record] = self.view.number
            self.node.sim.truth.notes(self, step, record, verdict)
            self.node.sim.names.made(self, step, record)
        self.node.sim.history.completed(self, step, record, by_attempt=by_attempt)
        self.saver.completed(step, record)

    # Those who learn.

    def _feed(self, step: int) -> None:
        if step not in self.records:
            return
        self.node.sim.history.feeds(self, step)
        index = [m.replica for m in self.view.members].index(self.node.replica)
        share = Share(self.view.number, step, index, len(self.view.members), self.records[step], False)
        for learner in self.view.learners:
            self._send(learner, share)

    def _feed_again(self, again: words.FeedAgain) -> None:
        for learner in self.view.learners:
            self._send(learner, FedFrom(again.first, again.top))
        for step in range(again.first, again.last + 1):
            self._feed(step)

    def _receive_share(self, share: Share, frame: member.Frame) -> None:
        key = (share.view, share.step, share.handed)
        shares = self._shares.setdefault(key, {})
        shares[share.index] = share.record
        if len(shares) < share.count:
            return
        del self._shares[key]
        now = self.node.sim.world.now
        self.node.sim.history.assembled(self, share.step, set(shares.values()))
        verdict = self.node.sim.truth.said(share.record)
        if share.handed:
            body, payload = words.Handed(share.step, verdict), share.record
            handed = member.Frame(frame.sender, frame.incarnation, share.view, body, payload)
            self.perform(self.participant.frame(handed, now))
        elif share.step > self.core.newest and not self.core.undone(share.step, share.view):
            self._offers[share.step] = (share.view, share.record)
            self.perform(self.participant.offered(share.step, now, share.view, verdict))

    def serve(self, to: Member, view: int, step: int, servers: tuple[int, ...]) -> None:
        """Send the own share of the state after this step, which the training thread has copied."""
        index = servers.index(self.node.replica)
        digest, bent, warp = self.trainer.gives(step)
        for number in range(PIECES):
            about = (digest, self.saver.claim, bent, warp, self.trainer.chief, self.trainer.ending.begun)
            self._send(to, Piece(view, step, index, len(servers), number, *about))

    def _receive_piece(self, piece: Piece) -> None:
        # One that reconciles may turn out to have no state when all have spoken.
        may_need = self.core.mode is words.Mode.RECONCILING and piece.view == self.view.number
        if self.core.newest != words.BLANK and not may_need:
            return
        newest = max((one.view for one in self._pieces.values()), default=0)
        if piece.view < newest:
            return
        if piece.view > newest:
            self._pieces.clear()
        self._pieces[piece.key] = piece
        self._moved_at = self.node.sim.world.now
        if not any(one.bent for one in self._pieces.values()):
            self.node.sim.history.pinned(self, {(one.step, one.digest) for one in self._pieces.values()})
        self._look_at_pieces()

    def _look_at_pieces(self) -> None:
        piece = next(iter(self._pieces.values()), None)
        if piece is None or self.core.newest != words.BLANK:
            return
        bent = any(one.bent for one in self._pieces.values())
        states = {one.digest for one in self._pieces.values()}
        if len(self._pieces) == piece.servers * PIECES:
            self.saver.claim = piece.claim
            digest = self.node.sim.truth.mixes(states) if len(states) > 1 else piece.digest
            warp = max(one.warp for one in self._pieces.values())
            self.trainer.receive_state(
                piece.step, digest, piece.view, bent=bent, warp=warp, chief=piece.chief
            )
            self.trainer.final_step = piece.step if all(one.final for one in self._pieces.values()) else -1

    def begin(self, step: int, digest: int) -> None:
        """The lineage begins with the state after this step, unless somebody else has begun it meanwhile."""
        self.node.enter(Phase.STARTING)
        if self.core.mode is words.Mode.FOUNDING:
            self.trainer.found(step, digest)
            self.perform(self.participant.founded(step, self.node.sim.world.now))

    def takes(self, step: int, view: int) -> list[Action]:
        """The state after this step has come, pinned in that view: what follows from that. It is loaded only
        if it is not void."""
        return self.participant.loaded(step, self.node.sim.world.now, view)

    def loaded(self, step: int, actions: list[Action]) -> None:
        """The training thread has loaded the state after this step."""
        self._pieces.clear()
        self._offers = {later: offer for later, offer in self._offers.items() if later > step}
        for peer in self.view.members:
            if peer.replica != self.node.replica:
                self._send(peer, LearnerLoaded(Member(self.me.replica, self.me.incarnation)))
        self.perform(actions)

    def watch(self) -> None:
        """A learner that lacks something which is not coming gives up."""
        if self.over:
            return
        for peer in self.view.members:
            node = self.node.sim.replica_node(peer.replica)
            gone = node is None or not node.up or node.core.incarnation > peer.incarnation
            # Of one that has ended in order, the end comes after all that it had sent.
            if gone and not self.node.sim.mesh.under_way(peer.replica, self.node):
                self.lost_connection(peer.replica)
        self.perform([])
        for replica, incarnation in sorted(self.broken):
            self._say_gap(replica, incarnation)
        if self.core.mode is words.Mode.FOUNDING:
            for replica in self.core.others:
                self._send(self.view.member(replica), Founding())
        now = self.node.sim.world.now
        lacks = self.core.newest == words.BLANK or self.core.has_a_gap
        waits = self.core.mode in (words.Mode.LEARNING, words.Mode.LOADING) and lacks and self.view.members
        stands_at = (self.core.mode, self.core.newest, bool(waits))
        if stands_at != self._stands_at:
            self._stands_at, self._moved_at = stands_at, now
        if waits and not self.trainer.loading and now - self._moved_at > WATCHDOG_S:
            self.node.lose("what it waits for does not come")

    def _forget(self) -> None:
        """Records live as long as the core keeps them for others and the own thread has not applied them."""
        first = min(self.core.oldest, self.trainer.applied + 1)
        # They came in order, so the oldest is the first.
        while self.records and (step := next(iter(self.records))) < first:
            del self.records[step]
