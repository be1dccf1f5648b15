"""How the replicas of a stopped agent have ended, which it cannot tell any more.

An agent's word on exits is all that the job knows of them. When one is stopped and given up, some of its
replicas may have done all of their work meanwhile; nobody has read their status, and with the agent it would
be lost, and all of the work with it. So the launcher looks before it kills the agent: an exit that was not
read is still in the kernel's books. Their last lines are in pipes that only the agent can read, so it is
woken and may tell all that itself. If it does not stay awake, the lines are lost with it; but of the exits
the next agent is told, and judges as this one would have.
"""

from pathlib import Path

from outlast.errors import ProtocolError
from outlast.kinship import unread_status
from outlast.wire.progress import ProgressReader


def untold_exits(agent_home: Path, agent_pid: int) -> list[str]:
    """Arguments for the next agent; none if none of this one's replicas has ended unnoticed."""
    exits = []
    for page in sorted(agent_home.glob("replica-*.page")):
        try:
            reader = ProgressReader(page)
        except (OSError, ProtocolError):
            continue
        try:
            pid = reader.read().pid
        except ProtocolError:
            continue
        finally:
            reader.close()
        status = unread_status(pid, agent_pid) if pid > 0 else None
        if status is not None:
            exits.append(f"{page.stem.removeprefix('replica-')}:{status.returncode}")
    return ["--ended", ",".join(exits)] if exits else []
