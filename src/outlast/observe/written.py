"""An event as it is written down: what happened, in an envelope that says when, where and in whose life.

The envelope is the same for all events, and is added by the process that writes, not by the core that
decides. Both clocks are in it: the wall clock puts the processes of a run in order for people, and the
monotonic one, which nobody can set, measures how long things took within one machine.
"""

from __future__ import annotations

import msgspec

from outlast.errors import ProtocolError
from outlast.protocol.events import AnyEvent, Event

VERSION = 1


class Unknown(Event, frozen=True, kw_only=True):
    """An event of a newer version of Outlast, of which only the kind is understood."""

    what: str


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """One line of an events file."""

    version: int = VERSION
    time: float
    """Seconds since 1970, when it was emitted."""
    monotonic: float
    """Seconds of the machine's monotonic clock at the same moment."""
    source: str
    """Who says it: "replica-2", "agent-0", "coordinator", "launcher"."""
    pid: int
    incarnation: int = 0
    """The life of the replica that says it; 0 where that does not apply, and before it has joined."""
    dropped: int = 0
    """How many events of this process are missing before this one."""
    event: AnyEvent | Unknown


class _Envelope(msgspec.Struct):
    """The same, with the event as it stands there."""

    time: float
    monotonic: float
    source: str
    pid: int
    event: msgspec.Raw
    version: int = VERSION
    incarnation: int = 0
    dropped: int = 0


class _Kind(msgspec.Struct):
    kind: str


_WRITTEN = msgspec.json.Decoder(Written)
_ENVELOPE = msgspec.json.Decoder(_Envelope)
_KIND = msgspec.json.Decoder(_Kind)


def decode(line: bytes) -> Written:
    """What a line says. ProtocolError if it is none: one that a killed process has not finished."""
    try:
        return _WRITTEN.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        pass
    try:
        envelope = _ENVELOPE.decode(line)
        event = Unknown(what=_KIND.decode(envelope.event).kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ProtocolError(f"this is no line of an events file: {error}") from None
    return Written(
        version=envelope.version,
        time=envelope.time,
        monotonic=envelope.monotonic,
        source=envelope.source,
        pid=envelope.pid,
        incarnation=envelope.incarnation,
        dropped=envelope.dropped,
        event=event,
    )
