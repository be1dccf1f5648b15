"""Mistakes that are easy to make, planted in the real cores, to prove that the simulator finds them."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from outlast.protocol.agenda import Agenda
from outlast.protocol.coordinator import Action, Commit, CoordinatorCore, Publish
from outlast.protocol.driver import Driver
from outlast.protocol.election import Election
from outlast.protocol.evidence import Evidence
from outlast.protocol.finding import Finder
from outlast.protocol.life import Life
from outlast.protocol.lines import Line, Lines, _Waiting
from outlast.protocol.member import Deliver, Frame, MemberAction, MemberCore
from outlast.protocol.messages import Message, NotLeading, ViewNews
from outlast.protocol.participant import Action as Action_
from outlast.protocol.post import Outgoing
from outlast.protocol.recomputing import Recomputing
from outlast.protocol.repeating import packed
from outlast.protocol.roster import Change
from outlast.protocol.saving import Commit as CommitSave
from outlast.protocol.saving import Intend, Save, SaveAction, SaveCore
from outlast.protocol.seams import At, Done, Record, Worked
from outlast.protocol.standstill import Standstill
from outlast.protocol.step_words import (
    NO_FORK,
    Check,
    Completed,
    EndReached,
    Feed,
    Follow,
    Fork,
    Holding,
    Mode,
    Part,
    Stable,
    StepAction,
    Verdict,
)
from outlast.protocol.steps import StepCore
from outlast.protocol.supervision import AgentAction, AgentCore, Exit
from outlast.protocol.timing import Timing
from outlast.protocol.trunk import Checkpoint, before_claim, walk_trunk
from outlast.protocol.verifying import Verifying
from outlast.protocol.views import Charge, JobSpec, Member, Membership, View
from outlast.sim.keepers import Keeper
from outlast.sim.saver import Saver
from outlast.sim.simulation import Cast
from outlast.sim.store import ANY_TERM
from outlast.sim.vault import ClaimObject, SimVault, StripeObject


class FencingLeftOut(MemberCore):
    """Acts on frames of views and lives that are over."""

    def _stale(self, frame: Frame) -> list[MemberAction]:
        return [Deliver(frame)]


class NewerFramesDropped(MemberCore):
    """Drops what it does not understand yet instead of holding it."""

    def _hold(self, frame: Frame) -> list[MemberAction]:
        return []


class ViewNumberReused(CoordinatorCore):
    """Counts views from its own memory, which a restart empties."""

    def _agreed(self, membership: Membership) -> list[Action]:
        if self._in_flight is None and self.membership is None:
            membership = Membership(spec=membership.spec, view=View(), seats=membership.seats)
        return super()._agreed(membership)


class LeadershipNotCompared(CoordinatorCore):
    """Writes without asking the store whether it still leads."""

    def _begin(self, commit: Commit) -> list[Action]:
        return [replace(commit, term=ANY_TERM)]


class SpokenBeforeCommitted(CoordinatorCore):
    """Tells of a view while it is still being written."""

    def _begin(self, commit: Commit) -> list[Action]:
        return [Publish(ViewNews(view=commit.membership.view)), commit]


class ExitTakenForAnEnd(AgentCore):
    """Believes the exit status, whatever the replica has said of its work."""

    def _too_early(self, life: Any, ending: Exit) -> bool:
        return False


class MovedWithoutANumber(AgentCore):
    """Numbers a replica that was moved here by its own starts alone, so that it may look older than it is."""

    def _next_process(self, replica: int) -> int:
        self._places.pop(replica, None)
        process = super()._next_process(replica)
        self._places[replica] = 0
        return process

    def _take_care(self, places: dict[int, int], now: float) -> list[AgentAction]:
        return super()._take_care(dict.fromkeys(places, 0), now)


class LeftBehind(AgentCore):
    """Goes on with replicas that were given to others."""

    def _take_care(self, places: dict[int, int], now: float) -> list[AgentAction]:
        return super()._take_care({**self._places, **places}, now)


class _WatchesFromNow(Election):
    def _resume_after(self) -> int:
        return 10**9


class WatchEventLost(CoordinatorCore):
    """Resumes a broken watch from the present instead of from what it has seen."""

    def __init__(self, spec: JobSpec, timing: Timing) -> None:
        super().__init__(spec, timing)
        self.election = _WatchesFromNow(timing)


class ViewGoesBack(MemberCore):
    """Adopts whatever view it is told of, also one that is over."""

    def _news(self, view: View, now: float) -> list[MemberAction]:
        if 0 < view.number < self.view.number and view.holds(self.replica, self.incarnation):
            self.view = View(number=view.number - 1)
        return super()._news(view, now)


class _Rash(Evidence):
    def __init__(self, timing: Timing, now: float) -> None:
        super().__init__(timing, now)
        self._trust_until = now
        self._took_office_at = now - 100.0

    def wake(self, now: float) -> None:
        pass


class NewLeaderSuspectsAtOnce(CoordinatorCore):
    """Takes its own sleep, or its own newness, for the others' silence."""

    def _office_changed(self, now: float) -> list[Action]:
        actions = super()._office_changed(now)
        if self.evidence is not None:
            self.evidence = _Rash(self._timing, now)
        return actions


class _Endless(Standstill):
    def found(self, *_: Any) -> str:
        return ""


class _Patient(Evidence):
    def __init__(self, timing: Timing, now: float) -> None:
        super().__init__(timing, now)
        self._standstill = _Endless(timing)


class StandstillsLast(CoordinatorCore):
    """Waits with those who wait for each other."""

    def _office_changed(self, now: float) -> list[Action]:
        actions = super()._office_changed(now)
        self.evidence = self.evidence and _Patient(self._timing, now)
        return actions


class _Content(Evidence):
    def change(self, membership: Membership, now: float) -> Change:
        change = super().change(membership, now)
        if change.staying:
            change.removals = {who: replace(gone, closes=True) for who, gone in change.removals.items()}
        return change


class EndsWithoutTheChief(CoordinatorCore):
    """Calls the job finished when somebody has come to the end of the script, and the chief is gone."""

    def _office_changed(self, now: float) -> list[Action]:
        actions = super()._office_changed(now)
        self.evidence = self.evidence and _Content(self._timing, now)
        return actions


class _Wasteful(Evidence):
    def change(self, membership: Membership, now: float) -> Change:
        change = super().change(membership, now)
        change.final = set()
        return change


class HeirsPassedOver(CoordinatorCore):
    """Has everything trained again when no member is left, though learners have the final state."""

    def _office_changed(self, now: float) -> list[Action]:
        actions = super()._office_changed(now)
        self.evidence = self.evidence and _Wasteful(self._timing, now)
        return actions


class AsksTheSameAgain(Finder):
    """Does not go where it is sent to."""

    def heard(self, message: Message, now: float) -> float | None:
        return super().heard(NotLeading() if isinstance(message, NotLeading) else message, now)


class FinalStateNotGiven(StepCore):
    """Waits for the end of a step before it lets anybody in, also when no more steps are done."""

    def follows_at_once(self, planned: View) -> bool:
        return not self.holds_planned_views


class PartsKept(StepCore):
    """Takes contributions of the view before for those of the present one."""

    def adopt(self, view: View, *, in_band: bool) -> list[StepAction]:
        before = self._attempts
        actions = super().adopt(view, in_band=in_band)
        self._attempts._parts, self._attempts._sums = before._parts, before._sums
        self._attempts.concluded = bool(before._sums)
        return actions


class SurveysKept(StepCore):
    """Takes surveys of the view before for those of the present one."""

    def __init__(self, replica: int) -> None:
        super().__init__(replica, surveys=True)

    def adopt(self, view: View, *, in_band: bool) -> list[StepAction]:
        before = self._attempts
        actions = super().adopt(view, in_band=in_band)
        self._attempts._surveyed = before._surveyed
        return actions


class DoubtsIgnored(StepCore):
    """Completes an attempt although something in it is doubted."""

    def __init__(self, replica: int) -> None:
        super().__init__(replica, judges=True)

    def judged(self, step: int, trial: int, *, again: bool) -> list[StepAction]:
        return super().judged(step, trial, again=False)


class TrialKept(StepCore):
    """Goes on with the hearing of an earlier view in the present one."""

    def __init__(self, replica: int) -> None:
        super().__init__(replica, judges=True)

    def adopt(self, view: View, *, in_band: bool) -> list[StepAction]:
        trial = self.trial
        actions = super().adopt(view, in_band=in_band)
        self._attempts.trial = trial
        return actions


class AccusedBelieved(Driver):
    """Goes on together with who was found to be wrong, instead of waiting for a view without it."""

    def _heeds(self, charges: Sequence[Charge]) -> bool:
        return False


class FirstHoldingSuffices(StepCore):
    """Goes on as soon as one other member has said what it holds."""

    def _reconcile(self) -> list[StepAction]:
        heard = self._holdings._first
        if len(heard) < 2 <= len(self.view.members):
            return []
        for m in self.view.members:
            heard.setdefault(m.replica, Holding(self.newest))
        return super()._reconcile()


class RecordsReleasedEarly(StepCore):
    """Keeps nothing but the newest record, whoever may still lack the one before."""

    def _hold(self, step: int, verdict: Verdict) -> list[StepAction]:
        actions = super()._hold(step, verdict)
        self._keeping.oldest = step + 1
        return actions


class StableAtCompletion(StepCore):
    """Takes its own record for everybody's."""

    def _hold(self, step: int, verdict: Verdict) -> list[StepAction]:
        told = [action for action in super()._hold(step, verdict) if not isinstance(action, Stable)]
        return [*told, Stable(step)] if self.mode is Mode.RUNNING else told


class UnstableFed(StepCore):
    """Feeds learners with what it has just completed, which may yet be done again."""

    def _tell_stable(self, last: int) -> list[StepAction]:
        actions = super()._tell_stable(last)
        return [Feed(a.step + 1) if isinstance(a, Feed) else a for a in actions]


class SwitchesAlone(StepCore):
    """Switches to a planned view as soon as it knows of one, whether or not the others do."""

    def _complete(self, verdict: Verdict) -> list[StepAction]:
        parts = self._attempts.parts(self.step)
        named = max(part.pending for part in parts.values())
        known = self.pending
        if named > self.view.number and known == named:
            return [*self._hold(self.step, verdict), Follow(named)]
        for replica in list(parts):
            self._attempts.take(replica, Part(self.step))
        return super()._complete(verdict)


class FedAheadOfTheLedger(Driver):
    """Gives records to learners before they are written down."""

    def _holds_feeds(self) -> bool:
        return False


class WrongRecordTaught(Driver):
    """Answers a wish for one record with another."""

    def _whole(self, step: int) -> Record:
        right = super()._whole(step)
        other = self.life.records.get(step - 1, right)
        return self.bulk.given(step, other.vector, right.note)


class VoidAttemptsComplete(Driver):
    """Takes what was begun for an attempt that is over as done for the present one."""

    def _is_void(self, what: Done) -> bool:
        return not isinstance(what, Worked) and super()._is_void(what)

    def _worked(self, worked: Worked, now: float) -> Sequence[Action_]:
        here = At(self.steps.view.number, self.steps.step, self.steps.trial)
        return super()._worked(worked._replace(at=here), now)


class NewestFirst(Driver):
    """Does what was decided last before what was decided first."""

    def _pop(self) -> tuple[Life, Action_]:
        return self._todo.pop()


class LetsItSleep(Driver):
    """Does not wake the training thread when the record that it waits for is there."""

    def _wakes(self, action: Action_) -> bool:
        return not isinstance(action, Completed)


class _LooksFirst(Agenda):
    def is_wanted(self) -> None:
        pass


class HangsLookLikeWaits(Driver):
    """Leaves it to the training thread to say that it has something to do."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.agenda = _LooksFirst(self)


class GapsIgnored(Lines[Outgoing]):
    """Goes on over a new connection as if nothing had been lost with the old one."""

    def lost(self, line: Line) -> None:
        tie = self._tie_of(line)
        if tie is not None and tie.line == line:
            self.changes += 1
            self._attach(tie, None)

    def gap(self, line: Line, era: int) -> None:
        pass


class GapsForgotten(Lines[Outgoing]):
    """Takes any view for one in which everybody begins anew."""

    def adopt(self, view: View, own: int) -> None:
        super().adopt(view, own)
        for tie in self._ties.values():
            tie.used = tie.torn = False


class OldWordsFirst(Life):
    """What waits to be sent in a life that is over still waits in the next one, and all else behind it."""

    def __init__(self, *, before: Life | None = None, **more: Any) -> None:
        super().__init__(before=before, **more)
        if before is not None:
            self.post.lines = before.post.lines


NEVER = 1 << 60


class OneQueueForAllLives(Lines[Outgoing]):
    def __init__(self) -> None:
        super().__init__()
        self._last: dict[int, Outgoing] = {}
        """What was sent last to each replica, and is taken for what still waits in the next life."""

    def adopt(self, view: View, own: int) -> None:
        waiting = self._last if 0 < self.own != own else {}
        super().adopt(view, own)
        for tie in self._ties.values():
            if tie.peer.replica in waiting:
                tie.queue = deque([_Waiting(waiting[tie.peer.replica], 0, NEVER)])

    def route(self, peer: Member, frame: Outgoing, droppable_bytes: int = 0) -> Line | None:
        self._last[peer.replica] = frame
        tie = self._ties.get((peer.replica, peer.incarnation))
        if tie is not None and tie.line is not None and tie.queue:
            tie.queue.append(_Waiting(frame, 0, NEVER))
            return None
        return super().route(peer, frame, droppable_bytes)


class RecordsOutliveLives(Life):
    """Takes the records of a life that is over for its own."""

    def __init__(self, *, before: Life | None = None, **more: Any) -> None:
        super().__init__(before=before, **more)
        if before is not None:
            self.records = before.records
            self.inbox = before.inbox


class NobodyAsked(StepCore):
    """Does not listen to what others hold when it comes into a view out of step, but just goes on."""

    def _speak(self) -> list[StepAction]:
        actions = super()._speak()
        if self.newest > 0:
            self.mode = Mode.RUNNING
            self._top = self.newest
            actions += self._caught_up()
        return actions


class StripeSpokenOfTooEarly(Saver):
    """Reports its stripe as soon as it has asked the storage to take it."""

    def put(self, save: Save, stripe: StripeObject) -> None:
        super().put(save, stripe)
        self.durable(save, stripe)


class IntentNotAwaited(SaveCore):
    """Commits without waiting for the coordinator's word."""

    def _progress(self) -> list[SaveAction]:
        actions = super()._progress()
        return [*actions, *(CommitSave(a.save) for a in actions if isinstance(a, Intend))]


class UnstableSaved(SaveCore):
    """Commits as soon as all stripes are there, though the step may yet be done again."""

    def decided(self, step: int, completed_in: int, **more: Any) -> list[SaveAction]:
        self._stable = max(self._stable, step)
        return super().decided(step, completed_in, **more)


class NoSecondLook(Saver):
    """Goes on from what was the newest checkpoint before it made its claim."""

    def look_again(self, number: int, claim: ClaimObject) -> None:
        if not self._is_mine or self._node.view.number != claim.view:
            super().look_again(number, claim)
        else:
            self.ask(number, claim)


class BeginsUnasked(Saver):
    """Begins when it has looked again, though it may have been evicted."""

    def ask(self, number: int, claim: ClaimObject) -> None:
        self.begin(number, claim.base, claim.view)


class ClaimsCountAtOnce(SimVault):
    """Goes on from what a claim says, though its maker may have died before it looked again."""

    def newest(self, founded: int) -> Checkpoint | None:
        return next(walk_trunk(self.claims, self.manifests, self.base_of, lambda _: True, founded), None)

    def newest_before(self, number: int, founded: int) -> Checkpoint | None:
        walk = before_claim(number, self.claims, self.manifests, self.base_of, lambda _: True, founded)
        return next(walk, None)


class FoundationsForgotten(SimVault):
    """Goes on from what came late, if whoever began after it saved nothing."""

    def newest(self, founded: int) -> Checkpoint | None:
        return super().newest(0)

    def newest_before(self, number: int, founded: int) -> Checkpoint | None:
        return super().newest_before(number, 0)


class LateClaimsCount(SimVault):
    """Lets a claim supersede its own run, though it was made for a view that was over."""

    def _too_late(self, number: int, earlier: int) -> bool:
        return False


class StripesKept(SaveCore):
    """Takes the stripes of the save before, in another view perhaps, for those of this one."""

    def decided(self, step: int, completed_in: int, **more: Any) -> list[SaveAction]:
        stripes = self._stripes
        actions = super().decided(step, completed_in, **more)
        self._stripes |= stripes
        return actions


class CopiesAtAnyTime(Saver):
    """Copies the state when it is asked to, wherever the training thread stands."""

    def stands_right(self, save: Save) -> bool:
        return self._node.driver.applied >= 0


class GoesOnWithoutTheDead(SaveCore):
    """Commits with the stripes of those who are left."""

    def adopt(self, view: View) -> list[SaveAction]:
        if self.save is not None:
            there = tuple(w for w in self.save.writers if view.member(w) is not None)
            self.save = replace(self.save, writers=there or self.save.writers)
        return [*super().adopt(view), *self._progress()]


class KeepsWhatIsVoid(Keeper):
    """Keeps a state for its name that members went back behind."""

    def go_back(self, step: int) -> None:
        pass


class DigestNotLookedAt(Verifying):
    """Says the same digest whatever its state is."""

    def digested(self, step: int, digest: bytes, entries: bytes = b"") -> list[StepAction]:
        return super().digested(step, b"as ever" if digest else b"")


class StateIsOneEntry(Verifying):
    """Two flips are always in the same place."""

    def digested(self, step: int, digest: bytes, entries: bytes = b"") -> list[StepAction]:
        whole = packed({2: int.from_bytes(digest[:4], "little")}) if digest else b""
        return super().digested(step, digest, whole)


class BuffersNotCompared(Verifying):
    """Says nothing of the buffers that a step begins with: the next comparison of states is enough."""

    def check(self, newest: int, *, due: bool, checksum: int = 0, **_: bytes) -> Check:
        return super().check(newest, due=due, checksum=checksum)


class NobodyGoesBack(StepCore):
    """Has those evicted whose state differs, and goes on with what they have made of its own."""

    def _go_back(self, fork: Fork) -> list[StepAction]:
        self._descent.fork = fork
        return []


class GoesBackInSilence(StepCore):
    """Goes back, but does not tell those who do not know of it."""

    def _mine(self, *, running: bool = False) -> Holding:
        return replace(super()._mine(running=running), fork=NO_FORK)


class SavedBeforeItWasCompared(SaveCore):
    """Does not wait until the state is known to be right."""

    def decided(self, step: int, completed_in: int, **more: Any) -> list[SaveAction]:
        return super().decided(step, completed_in, **{**more, "gated": False})


class EndsUnverified(StepCore):
    """Lets the script have the last state without asking anybody."""

    def end(self) -> list[StepAction]:
        return [EndReached(self.newest)]


class LowestIsWrong(Recomputing):
    """Of two that differ, takes the lower one for the one that was wrong."""

    def contributed(
        self, step: int, checksums: Mapping[int, int], buffers: Mapping[int, bytes] | None = None
    ) -> None:
        super().contributed(step, checksums, buffers)
        if self._suspect is not None:
            self._suspect = (min(checksums), self._suspect[1])


class AccusesTheLowest(Verifying):
    def __init__(self) -> None:
        super().__init__()
        self.recomputing = LowestIsWrong()


class Nameless(Keeper):
    """Whose script asks for no names."""

    def applied(self, step: int, record: int, state: int) -> None:
        pass


def believing(**others: Any) -> Cast:
    """Nothing is doubted in these runs, and nothing wanted by name: mistakes that have nothing to do with
    that show sooner."""
    return Cast(**{"steps": StepCore, "keeper": Nameless, **others})


MUTANTS: dict[str, tuple[Cast, str]] = {
    "fencing left out": (believing(member=FencingLeftOut), "acts in view"),
    "view number reused after a coordinator restart": (
        believing(coordinator=ViewNumberReused),
        "is followed by",
    ),
    "leadership not compared in the write": (
        believing(coordinator=LeadershipNotCompared),
        "but the leader is",
    ),
    "an announcement before the commit": (believing(coordinator=SpokenBeforeCommitted), "never committed"),
    "a lost watch event": (believing(coordinator=WatchEventLost), "nobody leads"),
    "a newer-view message dropped instead of held": (
        believing(member=NewerFramesDropped),
        "hangs at step|is back|has ended|stand still",
    ),
    "a view that goes back": (believing(member=ViewGoesBack), "goes back from view"),
    "a new leader that suspects at once": (
        believing(coordinator=NewLeaderSuspectsAtOnce),
        "nothing has happened to it",
    ),
    "not going where the leader is": (
        Cast(finder=AsksTheSameAgain),
        "is back|has ended|nothing has happened",
    ),
    "heirs of the final state passed over": (Cast(coordinator=HeirsPassedOver), "has kept the final state"),
    "a feed ahead of the ledger": (Cast(driver=FedAheadOfTheLedger), "not in its ledger yet"),
    "parts of an earlier view kept": (
        Cast(steps=PartsKept),
        "nothing of|is back|has ended|stand still|hangs at step",
    ),
    "surveys of an earlier view kept": (Cast(steps=SurveysKept), "by the surveys of"),
    "a doubted attempt completed": (Cast(steps=DoubtsIgnored), "with the wrong numbers"),
    "a trial that outlives its view": (
        Cast(steps=TrialKept),
        "hangs at step|is back|has ended|core failed|stand still",
    ),
    "the accused believed": (Cast(driver=AccusedBelieved), "with the wrong numbers"),
    "not everybody waited for": (
        believing(steps=FirstHoldingSuffices),
        "feeds step|another record|another verdict|stable|hangs at step|different states|stand still",
    ),
    "records released too early": (
        Cast(steps=RecordsReleasedEarly),
        "again, though|hangs at step|is back|has ended|not stable|stand still",
    ),
    "a step called stable at completion": (Cast(steps=StableAtCompletion), "stable in view"),
    "an unstable record fed to learners": (Cast(steps=UnstableFed), "feeds step"),
    "a switch that not all agreed on": (
        Cast(steps=SwitchesAlone),
        "again, though|hangs at step|is back|stand still",
    ),
    "a wrong record taught": (believing(driver=WrongRecordTaught), "another record"),
    "a stripe reported before it is durable": (believing(saver=StripeSpokenOfTooEarly), "not durable"),
    "a commit without the intent": (believing(saves=IntentNotAwaited), "committed without its intent"),
    "a commit of what is not stable": (believing(saves=UnstableSaved), "which is not stable"),
    "no second look after a claim": (believing(saver=NoSecondLook), "before which .* was committed"),
    "a claim that counts at once": (believing(vault=ClaimsCountAtOnce), "before which .* was committed"),
    "a beginning without the coordinator's word": (
        believing(saver=BeginsUnasked),
        "of which the coordinator knows nothing",
    ),
    "a beginning that leaves no trace": (
        believing(vault=FoundationsForgotten),
        "when others had begun without it",
    ),
    "a claim that comes too late": (believing(vault=LateClaimsCount), "its run has claimed again"),
    "void states kept for a name": (
        believing(keeper=KeepsWhatIsVoid),
        "tainted|another state|not stable|not one",
    ),
    "stripes of an earlier save kept": (
        believing(saves=StripesKept),
        "another state|not one state|not durable",
    ),
    "a copy at the wrong time": (believing(saver=CopiesAtAnyTime), "another state|not one state"),
    "a committer that goes on without the dead": (
        believing(saves=GoesOnWithoutTheDead),
        "not one state|is back|stand still",
    ),
    "digests not looked at": (believing(verifying=DigestNotLookedAt), "tainted state"),
    "buffers not compared": (believing(verifying=BuffersNotCompared), "with different buffers"),
    "the culprit evicted, and nothing undone": (
        Cast(steps=NobodyGoesBack),
        "tainted state|is back|has ended|blames|for a mistake of the script|stand still",
    ),
    "going back in silence": (
        Cast(steps=GoesBackInSilence),
        "nobody found that states differ|another record|another state|is back|has ended|stand|shall copy",
    ),
    "a state saved before it was compared": (
        believing(saves=SavedBeforeItWasCompared),
        "is of a tainted state|about to commit another state",
    ),
    "an end without a comparison": (
        Cast(steps=EndsUnverified),
        "ends with a tainted state|states were found to differ then|has ended|stand still",
    ),
    "the wrong one of two accused": (believing(verifying=AccusesTheLowest), "of what replica"),
    "every second flip is the script's": (
        believing(verifying=StateIsOneEntry),
        "for a mistake of the script",
    ),
    "an exit taken for an end": (
        believing(agent=ExitTakenForAnEnd),
        "nobody has done all its work|is back|has ended|stand still",
    ),
    "an end without the chief": (
        believing(coordinator=EndsWithoutTheChief),
        "nobody has done all its work",
    ),
    "a final state that nobody gives": (Cast(steps=FinalStateNotGiven), "has ended|stand still"),
    "a standstill that is left alone": (
        believing(coordinator=StandstillsLast),
        "is back|has ended|stand still",
    ),
    "words across a gap counted": (
        believing(lines=GapsIgnored),
        "over more than one connection|nothing of|another record|another state|hangs at step|stand still",
    ),
    "a gap forgotten at a planned view": (
        believing(lines=GapsForgotten),
        "over more than one connection|another record|another state|different states",
    ),
    "words queued behind those of a life that is over": (
        believing(life=OldWordsFirst, lines=OneQueueForAllLives),
        "is back|has ended|nothing has happened to it|stand still|feeds step|over more than one",
    ),
    "a completion of a void attempt": (
        believing(driver=VoidAttemptsComplete),
        "another record|is back|has ended|core failed|nothing of|again, though|stand still",
    ),
    "a record of an old life": (
        believing(life=RecordsOutliveLives),
        "another record|another state|core failed|completes step|is back|has ended|stand still",
    ),
    "a queue served out of order": (
        believing(driver=NewestFirst),
        "acts in view|core failed|another record|is back|has ended|goes back from view|stable|stand still",
    ),
    "a lost wake-up": (believing(driver=LetsItSleep), "is back|has ended|hangs at step|stand still"),
    "a hang that looks like a wait": (
        believing(driver=HangsLookLikeWaits),
        "stand still",
    ),
    "a moved replica that is numbered by its agent alone": (
        believing(agent=MovedWithoutANumber),
        "is back|has ended|stand still",
    ),
    "a replica that is left behind": (believing(agent=LeftBehind), "is back|has ended"),
    "no reconciliation": (
        Cast(steps=NobodyAsked),
        "again, though|hangs at step|is back|has ended|another (verdict|state)|stand still",
    ),
}
"""Each mistake with the cast that makes it and what the checker has to say to it."""
