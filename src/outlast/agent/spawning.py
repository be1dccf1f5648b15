"""What the agent and its forkserver say to each other: typed, length-prefixed msgpack over a Unix socket."""

import os
from collections.abc import Mapping

import msgspec

from outlast.wire import framing

MESSAGE_MAX_BYTES = 8 << 20


class Spawn(msgspec.Struct, frozen=True, tag=True):
    """Start a replica. Three descriptors come along: its standard output, its standard error, and a pipe
    on which the agent writes a byte to let it go, or which it closes to let it die."""

    replica: int
    process: str
    argv: list[str]
    environment: dict[bytes, bytes]
    cwd: str
    nice: int = 0


class Guard(msgspec.Struct, frozen=True, tag=True):
    """Replicas of an earlier forkserver that run: when the agent dies, bury these too."""

    pids: list[int]


class Forget(msgspec.Struct, frozen=True, tag=True):
    """This replica is gone and so is its group: its number may soon be somebody else's."""

    pid: int


class Ready(msgspec.Struct, frozen=True, tag=True):
    """Imports are done; `cold` says why nothing is preloaded although it was asked for."""

    preloaded: list[str]
    preload_s: float
    cold: str


class Spawned(msgspec.Struct, frozen=True, tag=True):
    """The replica is ready to run; `cold` says why it had to get an interpreter of its own."""

    process: str
    pid: int
    cold: str


class SpawnFailed(msgspec.Struct, frozen=True, tag=True):
    """It does not run. With a pid, there was a process that the agent must reap."""

    process: str
    reason: str
    pid: int | None = None


Request = Spawn | Guard | Forget
Reply = Ready | Spawned | SpawnFailed

_encode = msgspec.msgpack.Encoder().encode
decode_reply = msgspec.msgpack.Decoder(Reply).decode
decode_request = msgspec.msgpack.Decoder(Request).decode


def sealed(environment: Mapping[str, str]) -> dict[bytes, bytes]:
    """An environment as the kernel has it: names and values need not be text in any encoding."""
    return {os.fsencode(name): os.fsencode(value) for name, value in environment.items()}


def opened(environment: Mapping[bytes, bytes]) -> dict[str, str]:
    return {os.fsdecode(name): os.fsdecode(value) for name, value in environment.items()}


def frame(message: Request | Reply) -> bytes:
    return framing.frame(_encode(message), MESSAGE_MAX_BYTES)


def unborn_name(nursery: str) -> str:
    """What a replica is called until the agent knows of it; so the agent knows it even as a zombie."""
    return f"unborn-{nursery}"[:15]
