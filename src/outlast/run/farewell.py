"""The last lines of a run: the verdict, why, and what to do next.

They are made from what is written down about the end (`ended.py`), so that `outlast status` can say the same
of a run that ended yesterday.
"""

from outlast.run.ended import Ending, FaultNote
from outlast.run.faults import Fault, survived
from outlast.run.remains import Remains
from outlast.run.words import counted, duration

REASON_MOST = 600
GOES_ON = "the same command goes on from there"


def farewell(run: str, ended: Ending) -> list[str]:
    match ended.state:
        case "finished":
            return [_finished(ended), _faults(ended), _result(run, ended)]
        case "failed":
            return [_failed(ended), reason(ended.reason), _remedy(run, ended)]
        case _:
            return [_stopped(ended)]


def interrupted(left: Remains) -> str:
    """What there is to say of a run whose launcher ended without a word."""
    how = "was interrupted: its launcher was killed, or the machine went down"
    where = f"{how}, at step {left.step:,}" if left.step else how
    if left.place and left.saved_step is not None:
        return f"{where}; step {left.saved_step:,} is saved in {left.place}, {GOES_ON}"
    return where


def reason(text: str) -> str:
    """Why a job failed, as one line: what is said of last words is not meant for here."""
    first = " ".join(text.split()).removesuffix(":").removesuffix("its last words").rstrip("; ")
    return first if len(first) <= REASON_MOST else f"{first[:REASON_MOST]}…"


def _finished(ended: Ending) -> str:
    took = f"in {duration(ended.took_s)}"
    if not ended.step:
        return f"finished {took}"
    if ended.resumed_from is not None:
        steps = counted(max(0, ended.step - ended.resumed_from), "step")
        return f"finished: step {ended.step:,}, {steps} of it {took}"
    return f"finished: {counted(ended.step, 'step')} {took}"


def _failed(ended: Ending) -> str:
    when = f"after {duration(ended.took_s)}"
    if not ended.step:
        return f"failed {when}, before its first step"
    of = f" of {ended.total:,}" if ended.total else ""
    return f"failed {when}, at step {ended.step:,}{of}"


def _faults(ended: Ending) -> str:
    faults = [_fault(note) for note in ended.faults]
    return survived(faults, ended.faults_cost_s) or "nothing failed on the way"


def _fault(note: FaultNote) -> Fault:
    back_at = note.lasted_s
    return Fault(why=note.what, replica=note.replica, step=note.step, at=0.0, back_at=back_at)


def _result(run: str, ended: Ending) -> str:
    if ended.saved_to and ended.saved_step is not None:
        last = "the final checkpoint" if ended.saved_step >= ended.step else "the newest checkpoint"
        return f"{last}: step {ended.saved_step:,} in {ended.saved_to}"
    return f"what the replicas printed: outlast logs {run}"


def _remedy(run: str, ended: Ending) -> str:
    which = f" --replica {ended.replica}" if ended.replica is not None and ended.replica >= 0 else ""
    words = f"see `outlast logs {run}{which}`"
    if ended.saved_to and ended.saved_step is not None:
        return f"{words}; step {ended.saved_step:,} is saved in {ended.saved_to}, {GOES_ON}"
    return words


def _stopped(ended: Ending) -> str:
    if not ended.step and ended.saved_step is None:
        return "stopped before the first step"
    where = f"stopped at step {ended.step:,}"
    if not ended.saved_to:
        return f"{where}; nothing was saved, since the script gives no checkpoints= to outlast.join"
    if ended.saved_step is None:
        return f"{where}; nothing is saved in {ended.saved_to}: the same command begins anew"
    if ended.saved_step >= ended.step:
        return f"{where}; saved to {ended.saved_to}, {GOES_ON}"
    return f"{where}; step {ended.saved_step:,} is saved in {ended.saved_to}, {GOES_ON}"
