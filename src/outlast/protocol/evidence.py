"""What a leader has heard, and what follows from it.

Nothing here is agreed or durable: it is the leader's own picture of the world, made from beats and reports,
thrown away with its leadership and rebuilt by the next leader within one window. `change` turns the picture
into a `Change` for the roster to plan with.

The agents' word on *exits* is proof and acts at once, and so is a replica's own word that it is failing or
leaving. Everything else is suspicion, and needs trust in one's
own senses first: a leader that is new, or that has itself been asleep, gives everybody a full window.
"""

from collections.abc import Hashable

import msgspec

from outlast.protocol.charges import heeded
from outlast.protocol.complaints import Complaints
from outlast.protocol.detector import BeatHistory
from outlast.protocol.gaps import Gaps
from outlast.protocol.hang import hung
from outlast.protocol.messages import (
    Beat,
    Departure,
    Enlist,
    GaveUp,
    Message,
    Phase,
    Pulse,
    Register,
    Report,
)
from outlast.protocol.newcomers import Newcomers
from outlast.protocol.roster import Change, Removal
from outlast.protocol.standstill import Standstill
from outlast.protocol.timing import Timing
from outlast.protocol.views import Membership, Seat, ShardFailure, Standing, boot_of

REASON_LIMIT = 300


class AgentPicture:
    """The latest from one agent."""

    def __init__(self, sender: Hashable, beat: Beat, expected_gap_s: float, now: float) -> None:
        self.sender = sender
        self.beat = beat
        self.history = BeatHistory(expected_gap_s, now)

    def newer(self, beat: Beat) -> bool:
        return (beat.boot, beat.number) > (self.beat.boot, self.beat.number)


class Evidence:
    """Everything heard since this leader took office."""

    def __init__(self, timing: Timing, now: float) -> None:
        self._timing = timing
        self.agents: dict[str, AgentPicture] = {}
        self.registers: dict[int, tuple[Hashable, Register]] = {}
        self.enlists: dict[str, tuple[Hashable, Enlist]] = {}
        self._beats_before: dict[str, int] = {}
        """How many beats of an agent were heard when another one asked to be taken on by that name."""
        self.reports: dict[int, Report] = {}
        self._report_heard_at: dict[int, float] = {}
        self._departures: dict[int, Departure] = {}
        self._departed_at: dict[int, float] = {}
        self._gave_up: GaveUp | None = None
        self.furthest = 0
        """The newest step that a pulse has told of."""
        self._complaints = Complaints(timing.complaint_holds_s, timing.complaint_counts_after_s)
        self._gaps = Gaps(timing)
        self._newcomers = Newcomers()
        self._standstill = Standstill(timing)
        self._forming_since: float | None = None
        self._took_office_at = now
        self._heard_at = now
        self._trust_until = now + timing.trust_for_s
        self._paused_at = float("-inf")

    def wake(self, now: float) -> None:
        """The leader has been asleep: silence in that time means nothing, so all windows start anew."""
        self._trust_until = now + self._timing.trust_for_s
        self._complaints.clear()
        for picture in self.agents.values():
            picture.history.forgive(now)
        for replica in self._report_heard_at:
            self._report_heard_at[replica] = now

    def _hear(self, now: float) -> None:
        """After a silence of everybody, it was we who were cut off: one voice must not convict the others."""
        if now - self._heard_at >= self._timing.silent_at_least_s:
            self.wake(now)
        self._heard_at = now

    def overhear(self, sender: Hashable, message: Message, now: float) -> None:
        """Listen without knowing the membership, so that a slow store does not make anyone look silent. What
        replicas report is not heard, and they are given the time to say it again before anybody is
        suspected: it may explain what agents see."""
        self._trust_until = max(self._trust_until, now + 3 * self._timing.beat_every_s)
        match message:
            case Beat():
                self.note_beat(sender, message, now)
            case Register() | Report():
                self._hear(now)
                self._report_heard_at[message.replica] = now

    def note_beat(self, sender: Hashable, beat: Beat, now: float) -> bool:
        """Take a beat; says whether it holds proof of anything, rather than signs that need time to count."""
        self._hear(now)
        for departure in beat.departures:
            self._note_departure(departure, now)
        if beat.gave_up is not None and self._gave_up is None:
            self._gave_up = beat.gave_up
        self.furthest = max([self.furthest, *(pulse.step for pulse in beat.pulses)])
        picture = self.agents.get(beat.agent)
        if picture is None or beat.boot > picture.beat.boot:
            self.agents[beat.agent] = AgentPicture(sender, beat, self._timing.beat_every_s, now)
        elif picture.newer(beat):
            picture.sender, picture.beat = sender, beat
            picture.history.heard(now)
            return bool(beat.departures) or beat.gave_up is not None
        return True

    def _note_departure(self, departure: Departure, now: float) -> None:
        known = self._departures.get(departure.replica)
        if known is None or departure.process > known.process:
            self._departures[departure.replica] = departure
            self._departed_at[departure.replica] = now

    def note_register(self, sender: Hashable, register: Register, now: float) -> None:
        self._hear(now)
        self._report_heard_at[register.replica] = now
        known = self.registers.get(register.replica)
        if known is None or _life(register) >= _life(known[1]):
            self.registers[register.replica] = (sender, register)

    def note_enlist(self, sender: Hashable, enlist: Enlist, now: float) -> None:
        self._hear(now)
        known = self.enlists.get(enlist.agent)
        if known is None or known[1].start != enlist.start:
            picture = self.agents.get(enlist.agent)
            self._beats_before[enlist.agent] = picture.beat.number if picture is not None else 0
        self.enlists[enlist.agent] = (sender, enlist)

    def may_have_a_namesake(self, enlist: Enlist, membership: Membership, now: float) -> bool:
        """Whether another machine of that name may be taking part: there was not enough silence yet to say
        that it is gone, or was set up anew."""
        host, picture = membership.hosts.get(enlist.agent), self.agents.get(enlist.agent)
        if host is None or host.home == enlist.home or enlist.agent in membership.left:
            return False
        since = self._took_office_at if picture is None else picture.history.heard_at
        return now - since < self._timing.silent_at_most_s

    def has_a_namesake(self, enlist: Enlist) -> bool:
        """Whether the other one has been heard since this one asked."""
        picture = self.agents.get(enlist.agent)
        return picture is not None and picture.beat.number > self._beats_before[enlist.agent]

    def note_report(self, report: Report, now: float) -> bool:
        """Take a report of a present life; says whether it holds a new complaint."""
        self._hear(now)
        known = self.reports.get(report.replica)
        if known is not None and (report.incarnation, report.view) < (known.incarnation, known.view):
            return False
        if known is not None and known.failing and report.incarnation == known.incarnation:
            # There is no way back from that, whatever else it may still have to say.
            return False
        self.reports[report.replica] = report
        self._report_heard_at[report.replica] = now
        cut_off = (*report.unreachable, *self._gaps.worn_out(report))
        return self._complaints.note(report.replica, cut_off, now)

    def pulses(self, membership: Membership) -> list[Pulse]:
        """The latest pulse of every seat's present process."""
        return [
            pulse
            for picture in self.agents.values()
            for pulse in picture.beat.pulses
            if (seat := membership.seats.get(pulse.replica)) is not None
            and (seat.agent, seat.process) == (picture.beat.agent, pulse.process)
        ]

    def starting(self, membership: Membership) -> list[Pulse]:
        """The latest pulse of every process that has no seat yet. (An agent that is silent may have told of
        one that had one before.)"""
        seated = {seat.replica: seat.process for seat in membership.seats.values()}
        return [
            pulse
            for picture in self.agents.values()
            for pulse in picture.beat.pulses
            if pulse.process > seated.get(pulse.replica, -1)
        ]

    def silent_agents(self, now: float) -> list[str]:
        return sorted(name for name, picture in self.agents.items() if self._silent(picture.history, now))

    def change(self, membership: Membership, now: float) -> Change:
        change = Change(gave_up=self._gave_up)
        self._find_departures(membership, change, now)
        self._find_failing(membership, change)
        self._find_given_up(membership, change)
        self._find_guilty(membership, change)
        step = max((pulse.step for pulse in self.pulses(membership)), default=-1)
        change.gap = self._gaps.found(self.reports.values(), membership.view, step, now)
        if now >= self._trust_until:
            self._find_suspects(membership, change, now)
        # One that may not go yet, because nobody else holds the state, is judged like everybody else.
        self._find_leavers(membership, change)
        for replica, (_, register) in self.registers.items():
            if 0 <= replica < membership.spec.processes and _new_life(
                register, membership.seats.get(replica)
            ):
                change.arrivals[replica] = register
        for replica, report in self.reports.items():
            seat = membership.seats.get(replica)
            if seat is None or seat.incarnation != report.incarnation:
                continue
            if report.staying:
                change.staying.add(replica)
                change.chief = report.chief
            if report.final and seat.standing is Standing.LEARNER and not report.leaving:
                change.final.add(replica)
            if report.ready or report.final or (seat.standing is Standing.MEMBER and not report.catching_up):
                change.holding.add(replica)
            if seat.standing is Standing.LEARNER and report.ready and not report.leaving:
                change.ready.add(replica)
            if seat.standing is Standing.MEMBER:
                change.adopted[replica] = report.view
                if report.catching_up:
                    change.catching_up.add(replica)
            writes = seat.standing is Standing.MEMBER or (
                seat.standing is Standing.LEARNER and membership.spec.is_shadow(replica)
            )
            if writes and report.intent is not None:
                change.intents[replica] = report.intent
            # One that leaves is still waited for by those who work in the view with it.
            if report.foundation is not None and membership.counts_on(seat):
                change.foundations[replica] = report.foundation
        change.left = {
            name
            for name, picture in self.agents.items()
            if picture.beat.leaving and _is_its_newest(picture.beat, membership)
        }
        change.enlists = {
            name: enlist
            for name, (_, enlist) in self.enlists.items()
            if not self.may_have_a_namesake(enlist, membership, now)
        }
        if now >= self._trust_until:
            change.lost = {name for name in membership.hosts if self._is_lost(name, now)}
        change.guardians = sorted(self.agents.keys() - set(self.silent_agents(now)))
        change.form_now = self._formed_long_enough(membership, now)
        return change

    def _find_departures(self, membership: Membership, change: Change, now: float) -> None:
        told = {
            replica: departure
            for replica, departure in self._departures.items()
            if 0 <= replica < membership.spec.processes and outstanding(departure, membership)
        }
        finished_at = max((self._departed_at[r] for r, d in told.items() if d.finished), default=now)
        for replica, departure in told.items():
            if departure.finished and now < finished_at + self._timing.settle_s:
                continue
            if self._may_be_let_go(replica, membership, now):
                continue
            change.removals[replica] = Removal(
                process=departure.process,
                standing=Standing.FINISHED if departure.finished else Standing.GONE,
                cause=f"replica {replica} {departure.how}",
                proven=True,
                planned=departure.in_order,
                closes=departure.closes,
            )
            if departure.shard >= 0:
                change.failures[replica] = ShardFailure(
                    step=departure.step,
                    shard=departure.shard,
                    replica=replica,
                    process=departure.process,
                    reason=_in_short(departure.how, departure.last_words),
                )
                change.last_words[replica] = departure.last_words
        for seat in membership.seats.values():
            picture = self.agents.get(seat.agent)
            # One whose exit was told goes by that, when it is time.
            alive = (seat.present or seat.standing is Standing.EVICTED) and seat.replica not in told
            if alive and picture is not None and picture.beat.boot > boot_of(seat.process):
                # An agent's replicas die with it, so a restarted agent proves that they are gone.
                change.removals.setdefault(
                    seat.replica,
                    Removal(
                        process=seat.process,
                        standing=Standing.GONE,
                        cause=f"replica {seat.replica} died with its agent {seat.agent}",
                        proven=True,
                    ),
                )

    def _may_be_let_go(self, replica: int, membership: Membership, now: float) -> bool:
        """Whether it has left by a planned view, and a new leader has not heard yet from everybody whether
        they still count on it. They are about to say so; to interrupt them before would be rash."""
        seat = membership.seats.get(replica)
        leaving = seat is not None and not seat.present and seat.as_member() in membership.departing
        unheard = any(member.replica not in self.reports for member in membership.view.members)
        return leaving and unheard and now - self._took_office_at < self._timing.silent_at_least_s

    def _find_suspects(self, membership: Membership, change: Change, now: float) -> None:
        for seat in membership.seats.values():
            if self._watched(membership, seat) and self._unheard(seat, now):
                self._doubt(
                    change,
                    seat,
                    f"nothing is heard of replica {seat.replica}",
                    for_good=membership.spec.is_placed and self._is_given_up(seat, now),
                )
        # A pulse of an earlier incarnation says nothing about the present one.
        pulses = [
            p for p in self.pulses(membership) if p.incarnation == membership.seats[p.replica].incarnation
        ]
        for pulse in pulses:
            seat = membership.seats[pulse.replica]
            if self._watched(membership, seat) and pulse.stopped_s >= self._timing.stopped_for_s:
                self._doubt(change, seat, f"replica {seat.replica} is stopped")
        lives = [seat.replica for seat in membership.seats.values() if membership.counts_on(seat)]
        counted = self._counted(membership, pulses, now)
        all_seen = self._all_seen(membership, counted, now)
        working = self._newcomers.working(membership, counted, now)
        if all_seen:
            change.standstill = self._standstill.found(working, membership.view, now)
        # Where a connection broke that is there again, that is why they wait; the next view mends it.
        stuck = self._stuck(membership, working, now, all_seen=all_seen) if not change.gap else []
        for pulse in stuck:
            if pulse.phase is Phase.WAITING and self._complaints.concern(pulse.replica, lives):
                # It waits in the past because what it lacks was lost on the way: that is judged below.
                continue
            self._doubt(
                change,
                membership.seats[pulse.replica],
                f"replica {pulse.replica} hangs at step {pulse.step} while others wait for it",
            )
        staying = {
            seat.replica: seat.incarnation
            for seat in membership.seats.values()
            if membership.counts_on(seat)
            and seat.replica not in change.removals
            # Of one that is not heard from, nobody can say yet whether it is dead or cut off. The only one
            # that survived must not be taken for the one that is cut off from all.
            and now - self._report_heard_at.get(seat.replica, self._took_office_at)
            < self._timing.complaint_holds_s
        }
        members = set(membership.view.members)
        holders = [holder.replica for holder in membership.holders if holder in members]
        for replica in self._complaints.verdict(staying, now, holders):
            self._doubt(change, membership.seats[replica], f"replica {replica} is cut off from others")

    def _watched(self, membership: Membership, seat: Seat) -> bool:
        """One that is leaving is watched as long as others count on it."""
        return seat.present or membership.counts_on(seat)

    def _counted(self, membership: Membership, pulses: list[Pulse], now: float) -> list[Pulse]:
        """Those of members, as far as they may wait for each other."""
        view = membership.view
        if view.paused and (not view.planned or membership.active == view.number):
            # All hold still, each where the pause has found it, so nobody keeps anybody waiting.
            self._paused_at = now
            return []
        return [
            # Nor does the time of a pause count afterwards.
            msgspec.structs.replace(p, quiet_s=min(p.quiet_s, now - self._paused_at))
            for p in pulses
            if membership.counts_on(membership.seats[p.replica])
        ]

    def _stuck(
        self, membership: Membership, working: list[Pulse], now: float, *, all_seen: bool
    ) -> list[Pulse]:
        stuck = hung(
            working,
            all_seen=all_seen,
            view=membership.view.planned_since,
            window_s=self._timing.detect_within_s,
            cold_s=self._timing.cold_within_s,
        )
        # What an agent said before it fell silent says nothing about now.
        return [pulse for pulse in stuck if self._is_fresh(membership, pulse, now)]

    def _is_fresh(self, membership: Membership, pulse: Pulse, now: float) -> bool:
        agent = self.agents[membership.seats[pulse.replica].agent]
        return agent.history.silence_s(now) < self._timing.complaint_holds_s

    def _all_seen(self, membership: Membership, pulses: list[Pulse], now: float) -> bool:
        """Whether there is a fresh pulse of every member."""
        fresh = {pulse.replica for pulse in pulses if self._is_fresh(membership, pulse, now)}
        return fresh >= {member.replica for member in (*membership.view.members, *membership.departing)}

    def _doubt(self, change: Change, seat: Seat, cause: str, *, for_good: bool = False) -> None:
        removal = Removal(process=seat.process, standing=Standing.EVICTED, cause=cause, proven=for_good)
        change.removals.setdefault(seat.replica, removal)

    def _is_given_up(self, seat: Seat, now: float) -> bool:
        """Whether it has been silent for so long that it is not waited for, though nobody else may hold the
        state."""
        picture = self.agents.get(seat.agent)
        heard_at = self._took_office_at if picture is None else picture.history.heard_at
        heard_at = max(heard_at, self._report_heard_at.get(seat.replica, self._took_office_at))
        return now - heard_at >= self._timing.given_up_after_s

    def _unheard(self, seat: Seat, now: float) -> bool:
        """Neither its agent nor the replica itself: both would have to be silent for no reason."""
        own = self._report_heard_at.get(seat.replica, self._took_office_at)
        if now - own < self._timing.silent_at_least_s:
            return False
        picture = self.agents.get(seat.agent)
        if picture is None:
            return now - self._took_office_at >= self._timing.never_heard_s
        return self._silent(picture.history, now)

    def _is_lost(self, agent: str, now: float) -> bool:
        picture = self.agents.get(agent)
        since = self._took_office_at if picture is None else picture.history.heard_at
        return now - since >= self._timing.lost_after_s

    def _silent(self, history: BeatHistory, now: float) -> bool:
        return history.suspect(now, self._timing.silent_at_least_s, self._timing.silent_at_most_s)

    def _find_failing(self, membership: Membership, change: Change) -> None:
        for seat in membership.seats.values():
            report = self.reports.get(seat.replica)
            if report is None or not report.failing or report.incarnation != seat.incarnation:
                continue
            if not self._watched(membership, seat):
                continue
            at = f" at step {report.failing_step}" if report.failing_step >= 0 else ""
            removal = Removal(
                process=seat.process,
                standing=Standing.EVICTED,
                cause=f"replica {seat.replica} fails{at}: {report.failing[:REASON_LIMIT]}",
                proven=True,
                failing=True,
            )
            change.removals.setdefault(seat.replica, removal)
            if report.failing_step >= 0:
                failure = ShardFailure(
                    step=report.failing_step,
                    shard=report.failing_shard,
                    replica=seat.replica,
                    process=seat.process,
                    reason=report.failing[:REASON_LIMIT],
                )
                # Its own words say more than how its agent saw it end.
                change.failures[seat.replica] = failure

    def _find_given_up(self, membership: Membership, change: Change) -> None:
        """Lives that say themselves that they cannot go on, while others wait for them."""
        for seat in membership.seats.values():
            report = self.reports.get(seat.replica)
            if report is None or not report.given_up or report.incarnation != seat.incarnation:
                continue
            if membership.counts_on(seat):
                removal = Removal(
                    process=seat.process,
                    standing=Standing.EVICTED,
                    cause=f"replica {seat.replica} begins anew: {report.given_up[:REASON_LIMIT]}",
                    proven=True,
                )
                change.removals.setdefault(seat.replica, removal)

    def _find_guilty(self, membership: Membership, change: Change) -> None:
        for charge in heeded(membership.view, self.reports):
            change.charges.append(charge)
            seat = membership.seats.get(charge.replica)
            if (
                seat is not None
                and seat.incarnation == charge.incarnation
                and self._watched(membership, seat)
            ):
                removal = Removal(
                    process=seat.process,
                    standing=Standing.EVICTED,
                    cause=f"replica {seat.replica} of {seat.agent}, step {charge.step}: "
                    + charge.reason[:REASON_LIMIT],
                    # What it computed is proven to be wrong; the state that it holds is not, and where nobody
                    # else holds it, it stays.
                    proven=False,
                    guilty=True,
                )
                change.removals.setdefault(seat.replica, removal)

    def _find_leavers(self, membership: Membership, change: Change) -> None:
        for seat in membership.seats.values():
            report = self.reports.get(seat.replica)
            asked = report is not None and report.leaving and report.incarnation == seat.incarnation
            if seat.present and asked:
                # It goes whether or not others hold the state, so this is as good as proof.
                removal = Removal(
                    process=seat.process,
                    standing=Standing.EVICTED,
                    cause=f"replica {seat.replica} leaves",
                    proven=True,
                    planned=True,
                )
                change.removals.setdefault(seat.replica, removal)

    def _formed_long_enough(self, membership: Membership, now: float) -> bool:
        waiting = not membership.view.members and any(seat.present for seat in membership.seats.values())
        if not waiting:
            self._forming_since = None
            return False
        if self._forming_since is None:
            self._forming_since = now
        return now - self._forming_since >= self._timing.form_within_s

    def settle(self, membership: Membership) -> None:
        """Forget what the agreed membership has overtaken."""
        for replica, (_, register) in list(self.registers.items()):
            if not _new_life(register, membership.seats.get(replica)):
                del self.registers[replica]
        for name, (_, enlist) in list(self.enlists.items()):
            host = membership.hosts.get(name)
            if host is not None and host.start == enlist.start:
                del self.enlists[name]
        for replica, report in list(self.reports.items()):
            seat = membership.seats.get(replica)
            heeded = seat is not None and self._watched(membership, seat)
            if seat is None or not heeded or seat.incarnation != report.incarnation:
                del self.reports[replica]
                self._complaints.forget(replica)


def _is_its_newest(beat: Beat, membership: Membership) -> bool:
    """Whether no later start of this agent has been agreed on."""
    host = membership.hosts.get(beat.agent)
    return host is None or beat.boot >= host.boot


def outstanding(departure: Departure, membership: Membership) -> bool:
    """Whether the membership does not say yet that this process has exited."""
    seat = membership.seats.get(departure.replica)
    if seat is None or seat.process < departure.process:
        return True
    exited = seat.standing in (Standing.GONE, Standing.FINISHED)
    return seat.process == departure.process and not exited


def _in_short(how: str, last_words: str) -> str:
    """How a process ended, with the last line that it said: mostly that of the exception."""
    lines = last_words.strip().splitlines()
    return f"{how}: {lines[-1]}"[:REASON_LIMIT] if lines else how


def _life(register: Register) -> tuple[int, int]:
    return register.process, register.rejoin


def _new_life(register: Register, seat: Seat | None) -> bool:
    if seat is None:
        return True
    if register.process == seat.process and seat.standing in (Standing.GONE, Standing.FINISHED):
        return False
    return _life(register) > (seat.process, seat.rejoin)
