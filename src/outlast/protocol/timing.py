"""One knob, and every timeout that follows from it.

A user says how soon a failure has to be noticed (`detect_within_s`). Everything else is a fixed fraction or
multiple of that, so that timeouts can never contradict each other: beats come often enough that ten of them
fit into the window, a leader renews its lease several times before it runs out, and so on.
"""

from dataclasses import dataclass

from outlast.errors import ConfigError

SHORTEST_WINDOW_S = 0.2
LONGEST_WINDOW_S = 600.0


@dataclass(frozen=True, kw_only=True)
class Timing:
    """All times of the control plane, derived from `detect_within_s`."""

    detect_within_s: float = 1.0
    """How soon a failure is noticed. Smaller reacts faster and is fooled sooner by a very busy machine."""

    form_within_s: float = 30.0
    """How long the first view waits for all replicas before it is formed from those that are there."""

    cold_within_s: float = 600.0
    """How long a first step may take while others wait for it; compiling a large model takes minutes."""

    def __post_init__(self) -> None:
        self.validate()

    def validate(self) -> None:
        if not SHORTEST_WINDOW_S <= self.detect_within_s <= LONGEST_WINDOW_S:
            raise ConfigError(
                f"detect_within_s (--detect-within) is {self.detect_within_s}, but must lie between "
                f"{SHORTEST_WINDOW_S} and {LONGEST_WINDOW_S} seconds: in less time an ordinary pause of the "
                "machine looks like a death"
            )
        if self.form_within_s < 0:
            raise ConfigError(f"form_within_s is {self.form_within_s}, but a wait cannot be negative; use 0")

    @property
    def beat_every_s(self) -> float:
        return self.detect_within_s / 10

    @property
    def beat_due_s(self) -> float:
        """Who looks at the clock so long after its last beat says the next one: a look that comes a hair too
        early would else put it off by a whole one."""
        return self.beat_every_s - self.tick_every_s / 2

    @property
    def tick_every_s(self) -> float:
        """How often cores look at the clock; events are handled at once, whatever this is."""
        return self.detect_within_s / 20

    @property
    def unanswered_s(self) -> float:
        """A coordinator that has said nothing for so long is left for another one."""
        return self.detect_within_s * 2

    @property
    def silent_at_least_s(self) -> float:
        """Nobody is suspected for silence before this, however regular its beats were."""
        return self.detect_within_s * 0.8

    @property
    def silent_at_most_s(self) -> float:
        """Everybody this silent is suspected, however irregular its beats were."""
        return self.detect_within_s * 3

    @property
    def never_heard_s(self) -> float:
        """A new leader suspects those that it has never heard when it has led for this long. By then whoever
        is there has found it: the leader before is left for another one no later than its lease ends, and one
        that cannot be reached costs a window."""
        return self.detect_within_s * 2

    @property
    def lost_after_s(self) -> float:
        """The replicas of a machine that has been silent for this long are started elsewhere."""
        return self.detect_within_s * 5

    @property
    def given_up_after_s(self) -> float:
        """The last replica that holds the training state is waited for, but a machine may be lost for good:
        in a job on several machines it is given up after this long."""
        return self.detect_within_s * 60

    @property
    def stopped_for_s(self) -> float:
        """A replica that its agent sees stopped (SIGSTOP) for this long is evicted."""
        return self.detect_within_s / 2

    @property
    def stopped_for_good_s(self) -> float:
        """An agent or a forkserver that is stopped for this long is killed and replaced. It takes replicas
        with it, or keeps them from being started, so it is neither hurried nor put off with a wide window."""
        return min(6.0, self.linger_stopped_s)

    @property
    def complaint_holds_s(self) -> float:
        """A complaint is forgotten when it is not repeated within this time."""
        return self.detect_within_s / 2

    @property
    def complaint_counts_after_s(self) -> float:
        """A complaint that has been upheld this long against the agent's word means a partial partition."""
        return self.detect_within_s / 2

    @property
    def standstill_s(self) -> float:
        """So long, and some steps more, all members may wait for each other."""
        return self.detect_within_s * 10

    @property
    def trust_for_s(self) -> float:
        """A new or stalled leader suspects nobody for this long: one full window."""
        return self.detect_within_s

    @property
    def stalled_after_s(self) -> float:
        """A leader whose clock jumps by this much between two ticks has been asleep, not the others."""
        return self.detect_within_s / 4

    @property
    def lease_s(self) -> float:
        """How long leadership outlasts the last sign of life of the leader."""
        return max(1.0, 2 * self.detect_within_s)

    @property
    def settle_s(self) -> float:
        """Finished replicas leave the view this much later, so that an ordinary ending is one change."""
        return self.detect_within_s / 4

    @property
    def linger_s(self) -> float:
        """An evicted replica has this long to come back by itself before its agent replaces it."""
        return self.detect_within_s * 2

    @property
    def linger_still_s(self) -> float:
        """The same for one whose training thread has not moved for a whole window: it hangs."""
        return self.detect_within_s / 4

    @property
    def linger_stopped_s(self) -> float:
        """The same for a stopped one, which somebody may be about to wake."""
        return self.detect_within_s * 10
