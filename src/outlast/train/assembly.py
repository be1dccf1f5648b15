"""Putting a replica together: what `join` was given becomes an engine that can train.

The only place in training that looks at how this process was started. With a hand-over from an agent there is
a link, a mesh and a progress page; without one this process is the whole job: the same engine, with a view
of one member and nobody to talk to.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from torch import nn
from torch.optim import Optimizer

from outlast import locks
from outlast.errors import ConfigError
from outlast.mesh.transport import Mesh
from outlast.observe.files import open_events
from outlast.protocol.deeds import Setup
from outlast.protocol.driver import Driver
from outlast.protocol.kinds import RecordNote
from outlast.protocol.member import MemberCore
from outlast.protocol.seams import Noted
from outlast.protocol.seams import Record as Stable
from outlast.protocol.step_words import NO_FORK
from outlast.protocol.steps import StepCore
from outlast.protocol.timing import Timing
from outlast.protocol.views import SHARDS_MOST
from outlast.rules import Mean, Rule
from outlast.state.fingerprint import Fingerprint, differences, take_fingerprint
from outlast.state.storage.opening import open_storage
from outlast.state.training import TrainingState
from outlast.state.vault.occupancy import Process
from outlast.train import seeding
from outlast.train.bulk import TensorBulk
from outlast.train.centre import Centre
from outlast.train.claims import HeldClaim
from outlast.train.comparing import Comparing, StepFacts
from outlast.train.data import Data
from outlast.train.engine import Engine
from outlast.train.exchange import Exchange
from outlast.train.freezing import Freezing
from outlast.train.gradients import Gradients
from outlast.train.layout import Layout
from outlast.train.ledger import Ledger
from outlast.train.ledger_thread import LedgerThread
from outlast.train.link import Link
from outlast.train.outlet import Sink, TrainingOutlet
from outlast.train.records import Record
from outlast.train.restoring import Beginning
from outlast.train.resuming import SHARDS, Resuming
from outlast.train.rhythm import AUTO, Verify
from outlast.train.ruling import Ruling, checked_rule
from outlast.train.saving import Saving, Settings
from outlast.train.schedules import Schedules
from outlast.train.screening import Screening, checked_audit, has_scaler
from outlast.train.sums import NodeSum
from outlast.train.tiers import Tiers, shards_of_newest
from outlast.train.together import named_optimizers, one_model
from outlast.wire.handover import Handover, handover
from outlast.wire.progress import Progress
from outlast.wire.rundir import RunDirectory

log = logging.getLogger(__name__)

RESERVED = "outlast."
RECORDS_BEHIND = 32
SPARE_BYTES = 64 << 20

_took_part: set[int] = set()
"""This process, by its pid, once it has a place in the job of an `outlast run`. A child is another one."""


class Facts:
    """What all replicas of a run must have in common beside their program; part of the state."""

    def __init__(
        self,
        seed: int,
        shards: int,
        fingerprint: Fingerprint | None,
        rule: Rule | None = None,
        screening: Screening | None = None,
        centre: Centre | None = None,
        freezing: Freezing | None = None,
        id_: str = "",
    ) -> None:
        self.freezing = freezing
        self.screening = screening or Screening()
        self.seed = seed
        self.shards = shards
        self.rule = str(rule or Mean())
        self.centre = centre
        self.last: StepFacts = (0, 0, (), ())
        """Whoever is given the state may be the only one who survives to write this down."""
        self.given: StepFacts | None = None
        self.ended = 0
        """After which step the script has ended the run, by leaving its loop early; 0 if it has not."""
        self.founder = -1
        """Who began the lineage; as long as there is no step, it is the chief."""
        self.resuming = False
        """Whether what is loaded is a checkpoint, which may come from another kind of machine."""
        self.changed: frozenset[str] = frozenset()
        """What may differ from that checkpoint."""
        self.id = id_
        """Of the run, over all starts of it."""
        self._fingerprint = fingerprint

    @property
    def chief(self) -> int:
        """The one who does what there is to do after the last step: a member that took part in it. Whoever is
        given the state agrees on that, and needs to ask nobody."""
        owners = self.last[2]
        return min(owners) if owners else self.founder

    def found(self, replica: int) -> None:
        """This replica begins a lineage; what was before it is history."""
        self.founder, self.given = replica, None
        self.last = (self.last[0], 0, (), ())

    def state_dict(self) -> dict[str, Any]:
        print_ = None if self._fingerprint is None else msgspec.to_builtins(self._fingerprint)
        facts = {
            "seed": self.seed,
            "shards": self.shards,
            "rule": self.rule,
            "last": self.last,
            "founder": self.founder,
            "ended": self.ended,
            "fingerprint": print_,
            "audit": self.screening.audit,
            "screening": self.screening.state_dict(),
            "frozen": self.freezing.frozen if self.freezing is not None else [],
            "id": self.id,
        }
        return facts if self.centre is None else {**facts, "centre": self.centre.state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state["shards"] != self.shards and SHARDS not in self.changed:
            raise ConfigError(
                f"The run cuts a step into {state['shards']} shards, and this replica's script into "
                f"{self.shards}. Give all replicas the same shards or micro_batch."
            )
        # Checkpoints from before there were rules do not name one.
        theirs = state.get("rule", str(Mean()))
        if theirs != self.rule and not self.resuming:
            raise ConfigError(
                f"The run follows the rule {theirs}, and this replica's script {self.rule}. Give all "
                "replicas the same rule."
            )
        if theirs != self.rule:
            log.warning("the checkpoint was made with the rule %s; from here on it is %s", theirs, self.rule)
        if state["fingerprint"] is not None and self._fingerprint is not None:
            found = differences(self._fingerprint, msgspec.convert(state["fingerprint"], Fingerprint))
            if found and not self.resuming:
                raise ConfigError(" ".join(found))
            if found:
                log.warning("the checkpoint was made where other bits are computed: %s", " ".join(found))
        audit = state.get("audit", self.screening.audit)
        if audit != self.screening.audit and not self.resuming:
            raise ConfigError(
                f"The run audits {audit} of its steps, and this replica's script {self.screening.audit}. "
                "Give all replicas the same audit."
            )
        # Checkpoints from before there was screening have seen nothing.
        if "screening" in state:
            self.screening.load_state_dict(state["screening"])
        if self.freezing is not None:
            # Checkpoints from before this was written down have nothing frozen.
            self.freezing.freeze(state.get("frozen", ()))
        # A seed that was not set by the script may be anything; the run's counts.
        self.seed = state["seed"]
        # Checkpoints from before runs had an id begin to have this one's.
        self.id = state.get("id") or self.id
        if self.centre is not None:
            # What was saved under a rule that has none goes on from the origin, like a run that begins.
            self.centre.load(state.get("centre"))
        # Checkpoints from before there was screening have left out nothing.
        step, view, shards, *rest = state["last"]
        self.last = self.given = (step, view, shards, rest[0] if rest else ())
        # Checkpoints from before it was written down have another one by now.
        self.founder = state.get("founder", -1)
        self.ended = state.get("ended", 0)


@dataclass(frozen=True)
class Saves:
    """Where and how often the state is saved."""

    urls: Sequence[str | os.PathLike[str]]
    settings: Settings


class Parts:
    """Everything that a job consists of in one process."""

    def __init__(
        self,
        *,
        replica: int,
        engine: Engine,
        outlet: TrainingOutlet,
        gradients: Gradients,
        facts: Facts,
        data: Data | None,
        model: nn.Module,
        optimizers: list[Optimizer],
        progress: Progress | None,
        ledger: Ledger | None,
        shard_count: int,
        state: TrainingState,
        claim: HeldClaim,
        resuming: Resuming,
        saves: bool,
        schedules: Schedules | None = None,
    ) -> None:
        self.replica = replica
        self._schedules = schedules
        self.engine = engine
        self.gradients = gradients
        self.facts = facts
        self.data = data
        self.optimizers = optimizers
        self.progress = progress
        self.shard_count = shard_count
        self._model = model
        self._known = {id(parameter) for parameter in model.parameters()}
        self._ledger = ledger
        self._ledger_thread = LedgerThread()
        self._fork = NO_FORK
        """The newest one that the ledger knows of."""
        self.claim = claim
        self._state = state
        self.resuming = resuming
        self.saves = saves
        """Whether there is a place to save to."""
        engine.on_beginning(self._begin, lambda: facts.found(replica))
        if ledger is not None:
            outlet.on_stable = self._note_down
            self._ledger_thread.fails(engine.break_down)

    def load(self, step: int, shard: int) -> tuple[float, Any]:
        """A shard's number of samples, and its batch."""
        if self.data is None:
            return 1.0, shard
        mine = self.engine.own_shards
        later = [(step, other) for other in mine if other > shard] + [(step + 1, other) for other in mine]
        self.data.expect([(step, shard), *later], self.shard_count)
        samples = len(self.data.order.positions(step, shard, self.shard_count))
        return samples, self.data.load(step, shard, self.shard_count, keep_randomness=False)

    def expect(self, total: int) -> None:
        """The script says how many steps the run has."""
        if self.progress is not None:
            self.progress.expect(total, self.data.order.global_batch if self.data is not None else 0)

    def finished(self, record: Record) -> None:
        """The record of a step has been applied."""
        if self.data is not None:
            self.data.completed_steps = record.step
        if self.facts.centre is not None:
            self.facts.centre.follow(record)
        self.facts.last = (record.step, record.note.view, record.note.shards, record.note.left_out)
        self.facts.screening.applied(record.step, record.note, self.shard_count)

    def _begin(self, beginning: Beginning) -> None:
        """Become the state of the checkpoint, if there is one. What it says of its own claim and its last
        step is history; this lineage has its own."""
        if beginning.manifest is not None and beginning.state is not None:
            self.resuming.load(beginning.manifest, beginning.state.tensors(), ended=beginning.ended)
        self.claim.claim, self.claim.elsewhere = beginning.claim, beginning.elsewhere
        self.facts.found(self.replica)

    def _note_down(self, record: Stable, noted: Noted) -> bool:
        """A step has become stable. Called under the engine's lock; True if there is nothing to wait for."""
        if self._ledger is None:
            return True
        given, self.facts.given = self.facts.given, None
        self._ledger_thread.put(
            lambda: self._write_down(record.step, record.note, given), lambda: self.engine.noted(noted)
        )
        return False

    def _write_down(self, step: int, note: RecordNote, given: StepFacts | None) -> None:
        assert self._ledger is not None
        fork = note.verdict.fork
        if fork.view > self._fork.view:
            # Members have gone back. They have in truth, if a step that they did again is stable: one that
            # has found their states to differ may have died before it told anybody.
            self._fork = fork
            self._ledger.void(view=fork.view, after=fork.step)
        if given is not None and given[2] and 0 < given[0] == step - 1:
            # Of the step whose state this replica was given, nobody else may have lived to write.
            self._write(*given)
        self._write(step, note.view, note.shards, note.left_out)

    def _write(self, step: int, view: int, owners: tuple[int, ...], left_out: tuple[int, ...]) -> None:
        assert self._ledger is not None and self.data is not None
        samples = {
            shard: self.data.samples(step, shard, self.shard_count).indices
            for shard, replica in enumerate(owners)
            if replica == self.replica
        }
        self._ledger.write(
            step=step, view=view, shards=dict(enumerate(owners)), samples=samples, left_out=left_out
        )

    def check_schedules(self) -> None:
        """Raises ConfigError if one was made since the job was joined."""
        if self._schedules is not None:
            self._schedules.check_again()

    def unknown_parameters(self) -> list[str]:
        return [name for name, p in self._model.named_parameters() if id(p) not in self._known]

    @property
    def chief(self) -> bool:
        """Whether what comes after the last step is for this replica to do."""
        return self.facts.chief == self.replica

    def close(self, *, stays: bool) -> None:
        """`stays`: the job is done here in order, and others may still need this process."""
        # Others may wait for what is sent when it is written.
        self._ledger_thread.close()
        if stays:
            self.engine.stay_for_others(self.facts.chief)
        else:
            self.engine.close()
        self.gradients.close()
        if self.data is not None:
            self.data.close()
        if self._ledger is not None:
            self._ledger.close()
            self._ledger = None


def assemble(
    *,
    model: nn.Module | Mapping[str, nn.Module],
    optimizer: Optimizer | Mapping[str, Optimizer] | None,
    data: Data | None,
    state: Mapping[str, Any],
    shards: int | None,
    micro_batch: int | None,
    rule: Rule | None,
    ledger: str | None,
    exact: bool,
    audit: float = 0.0,
    saves: Saves | None = None,
    verify: Verify = None,
    unchecked_schedules: bool = False,
    on_purpose: Collection[str] = (),
) -> Parts:
    if data is not None and not isinstance(data, Data):
        raise ConfigError(f"data is a {type(data).__name__}: wrap the dataset itself, in outlast.Data.")
    if not isinstance(state, Mapping):
        raise ConfigError(
            f"state is a {type(state).__name__}: give a dict, with a name for everything in it, such as "
            '{"schedule": schedule}.'
        )
    given = handover()
    if given is not None and os.getpid() in _took_part:
        raise ConfigError(
            f"replica {given.replica}: outlast.join was called before in this process. `outlast run` runs "
            "one job, and a script joins it once: train all of it in one loop of steps, or give what comes "
            "after it an `outlast run` of its own."
        )
    run = RunDirectory(given.run, given.run_id) if given is not None else None
    wish = _shards_wished(shards, micro_batch, data)
    tiers: Tiers | None = None
    stopped = threading.Event()
    if saves is not None:
        if not saves.urls:
            raise ConfigError("checkpoints = []: name at least one place, or leave it out to save nothing.")
        saves.settings.keep.validate()
        storages = [open_storage(url, stopped=stopped) for url in saves.urls]
        places = [storage.url for storage in storages]
        twice = [place for place in places if places.count(place) > 1]
        if twice:
            raise ConfigError(f"checkpoints: {twice[0]} is there twice. Name each place once.")
        tiers = Tiers(storages)
        # A run that goes on cuts its steps as it did before, whatever the number of replicas is now.
        wish = wish or shards_of_newest(tiers)
    shard_count = wish or (run.read().spec.shards if run is not None else 1)
    run_id = _run_id(run)
    rule = checked_rule(rule, shard_count, None if data is None else data.order)
    screening = Screening(audit=checked_audit(audit, exact=exact), exact=exact, lenient=has_scaler(state))
    model = one_model(model)
    layout = Layout(model)
    ruling = None if rule is None else Ruling(rule, layout)
    centre = None if ruling is None else ruling.centre
    print_ = take_fingerprint() if exact else None
    freezing = Freezing(model)
    facts = Facts(seeding.chosen, shard_count, print_, rule, screening, centre, freezing, run_id)
    optimizers = named_optimizers(optimizer)
    schedules = None if unchecked_schedules else Schedules(optimizers, state)
    if schedules is not None:
        schedules.check()
    claim = HeldClaim()
    training = TrainingState(model, optimizers, _extras(state, data, facts, claim))
    engine: Engine

    def on_bucket(node: NodeSum, bucket: int) -> None:
        engine.bucket(node, bucket)

    gradients = Gradients(layout, model, shard_count, on_bucket, lambda _: None, apart=rule is not None)
    mesh: Mesh | None = None
    link: Link | None = None
    if given is None:
        core = MemberCore(replica=0, process=0, agent="", address="", timing=Timing(), shards=shard_count)
        changed = locks.Monitor("engine")
    else:
        assert run is not None
        sink = Sink()
        described = run.read()
        mesh = Mesh(
            job=described.spec.name,
            token=run.token(),
            replica=given.replica,
            sink=sink,
            bind=described.reach.bind,
            ports=described.reach.ports,
            advertise=described.reach.advertise,
            allow_remote=described.insecure,
            dead_after_s=described.timing().silent_at_most_s,
            max_queued_bytes=_queue_bytes(training, layout),
        )
        link = Link(given, address=mesh.address, shards=wish)
        core, changed = link.core, link.changed
    saving: Saving | None = None
    if saves is not None and tiers is not None:
        launcher = run.read().launcher_pid if run is not None else 0
        if link is not None:
            link.progress.saves_to(tiers.vaults[0].storage.url)
        saving = Saving(
            replica=core.replica,
            run=run_id,
            process=Process.of(launcher or os.getpid()),
            tiers=tiers,
            settings=saves.settings,
            state=training,
            claim=claim,
            shards=shard_count,
            changed=changed,
            stopped=stopped,
            # The other half is for leaving itself.
            is_shadow=run.read().spec.is_shadow if run is not None else lambda _: False,
            leave_within_s=given.grace_s / 2 if given is not None else 0.0,
        )
    comparing = _comparing(verify, training, facts, changed, exact=exact, alone=link is None)
    progress = None if link is None else link.progress
    told = open_events(run, f"replica-{core.replica}") if run is not None else None
    outlet = TrainingOutlet(changed, mesh, link, progress, told)
    exchange = Exchange(layout, core.replica, gradients.pool, ruling, screening)
    bulk = TensorBulk(exchange, gradients, core.replica, lambda: facts.seed, outlet.note)
    setup = Setup(
        member=core,
        timing=Timing() if link is None else link.timing,
        steps=partial(
            StepCore,
            surveys=exchange.surveys,
            judges=exchange.screening is not None,
            verifies=comparing is not None,
        ),
        alone=link is None,
        shadow=run is not None and run.read().spec.is_shadow(core.replica),
    )
    driver = Driver(setup, bulk=bulk, outlet=outlet, saves=saving, copies=comparing, now=time.monotonic())
    for part in (bulk, saving, comparing):
        if part is not None:
            part.driven_by(driver)
    engine = Engine(
        driver=driver,
        outlet=outlet,
        state=training,
        gradients=gradients,
        exchange=exchange,
        changed=changed,
        link=link,
        mesh=mesh,
        progress=progress,
        saving=saving,
        comparing=comparing,
    )
    if given is not None:
        sink.hands_to(driver, changed)
        _took_part.add(os.getpid())
    return Parts(
        replica=core.replica,
        engine=engine,
        outlet=outlet,
        gradients=gradients,
        facts=facts,
        data=data,
        model=model,
        optimizers=list(optimizers.values()),
        progress=engine.progress,
        ledger=_ledger(ledger, data, given, shard_count, run_id),
        shard_count=shard_count,
        state=training,
        claim=claim,
        resuming=Resuming(training, facts, data, tiers.url if tiers is not None else "", on_purpose),
        saves=saving is not None,
        schedules=schedules,
    )


def _comparing(
    verify: Verify,
    training: TrainingState,
    facts: Facts,
    changed: locks.Monitor,
    *,
    exact: bool,
    alone: bool,
) -> Comparing | None:
    """Without anybody else, or where bits may differ, there is nothing to compare."""
    if verify is None:
        return None
    if not exact and verify != AUTO:
        raise ConfigError(
            f"verify = {verify!r}: with exact=False replicas may differ in their bits, so there is nothing "
            "to compare. Leave one of them out."
        )
    comparing = Comparing(training, facts, verify, changed)
    return comparing if exact and not alone else None


def _queue_bytes(training: TrainingState, layout: Layout) -> int:
    """What may wait to be sent to a learner before it is dropped: the state, and some records after it."""
    image, _ = training.capture()
    return image.total_bytes + RECORDS_BEHIND * layout.size * layout.dtype.itemsize + SPARE_BYTES


def _shards_wished(shards: int | None, micro_batch: int | None, data: Data | None) -> int:
    """How many shards the script asks for; 0 if it leaves that to the job."""
    if shards is not None and micro_batch is not None:
        raise ConfigError("Give outlast.join either shards or micro_batch: each decides the other.")
    for name, value in (("shards", shards), ("micro_batch", micro_batch)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise ConfigError(f"{name} = {value!r}: give a whole number, or leave it out.")
    if micro_batch is not None:
        if data is None or micro_batch < 1:
            raise ConfigError(f"micro_batch = {micro_batch} needs data, and at least one sample in a shard.")
        shards = -(-data.order.global_batch // micro_batch)
    if shards is not None and not 1 <= shards <= SHARDS_MOST:
        raise ConfigError(
            f"shards = {shards}: a step has 1 to {SHARDS_MOST} shards; leave it out for the default."
        )
    return shards or 0


def _extras(state: Mapping[str, Any], data: Data | None, facts: Facts, claim: HeldClaim) -> dict[str, Any]:
    taken = [key for key in state if str(key).startswith(RESERVED)]
    if taken:
        raise ConfigError(f"state[{taken[0]!r}]: names that begin with {RESERVED!r} are Outlast's own.")
    extras = {**state, f"{RESERVED}run": facts, f"{RESERVED}claim": claim}
    if data is not None:
        extras[f"{RESERVED}data"] = data
    return extras


def _run_id(run: RunDirectory | None) -> str:
    """A name that no other run has, not even one in the same directory."""
    if run is None:
        return f"alone-{secrets.token_hex(4)}"
    mark = hashlib.blake2b(run.token(), digest_size=4, person=b"run-id").hexdigest()
    return f"{run.read().spec.name}-{mark}"


def _ledger(
    folder: str | None, data: Data | None, given: Handover | None, shard_count: int, run: str
) -> Ledger | None:
    if folder is None:
        return None
    if data is None:
        raise ConfigError(f"ledger = {folder!r}: there are no samples to write down without data.")
    replica = given.replica if given is not None else 0
    try:
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        return Ledger(path / f"replica-{replica}.ledger", data.order, shard_count, run)
    except OSError as error:
        raise ConfigError(
            f"ledger = {folder!r}: no ledger can be kept in this folder ({error.strerror}). Give another."
        ) from error
