"""Why a member ended, or does not get on, told from its own log. Pure.

etcd speaks to people who know it. What a member says last is looked for here by its words, and told as what
happened and what to do now; what is not known is handed on as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from outlast.coordinator.store.gateway import Endpoint
from outlast.errors import AddressInUse, ConfigError, OutlastError, StoreDamaged, StoreError, StoreFull

LAST_LINES = 3


def verdict(
    words: str, *, name: str, folder: Path, contacts: Sequence[Endpoint], status: str
) -> OutlastError:
    """`words` is the end of its log, `status` how it ended."""
    told = [_line(line) for line in words.splitlines() if line.strip()]
    text = "\n".join(told)
    others = ",".join(map(str, contacts)) or "ENDPOINTS"
    if "address already in use" in text:
        return AddressInUse(
            f"member {name}: somebody listens on one of its ports: {_line_with(told, 'address')}"
        )
    if "already been bootstrapped" in text:
        return ConfigError(
            f"the others know member {name} from before, and its data is not in {folder}. If it is "
            f"elsewhere, give it as --data; if it is lost: outlast etcd start --name {name} --at … "
            f"--join {others} --replace"
        )
    if "permanently removed" in text:
        return ConfigError(
            f"member {name} was removed from its cluster, perhaps since it was replaced, and its data is of "
            f"no use any more. To have it back, remove {folder} and let it join: --join {others}"
        )
    if any(part in text for part in ("member count is unequal", "unmatched member", "has no matching")):
        return ConfigError(
            f"what the cluster says of its members is not what {name} was told: give the same --members "
            f"list, character for character, on every machine, or let it join: --join {others}"
        )
    if "no space left on device" in text or "disk quota exceeded" in text:
        return StoreFull(f"no space is left for member {name} in {folder}: free some, and start it again")
    if any(
        part in text for part in ("crc mismatch", "file corrupt", "freelist", "invalid database", "checksum")
    ):
        return StoreDamaged(
            f"the data of member {name} in {folder} is damaged ({told[-1] if told else status}). The others "
            f"hold all of it: remove that folder and start it with --join {others} --replace"
        )
    last = "\n  ".join(told[-LAST_LINES:]) or "it did not say why"
    return StoreError(f"member {name} {status}. Its last words, from {folder}:\n  {last}")


def hindrance(words: str) -> str:
    """What keeps members apart although they run; empty if nothing is known to."""
    if "cluster ID mismatch" in words:
        return (
            "another member belongs to another cluster, or was started with another --members list: the list "
            "has to be the same, character for character, on every machine"
        )
    if "clock difference" in words:
        return "the clocks of the machines differ: set them by NTP"
    return ""


def _line(line: str) -> str:
    """A line of JSON in plain words."""
    try:
        fields = msgspec.json.decode(line)
    except msgspec.DecodeError:
        return line
    if not isinstance(fields, dict):
        return line
    rest = [f"{key}: {fields[key]}" for key in ("error", "err", "stack") if fields.get(key)]
    return " · ".join([str(fields.get("msg", "")), *rest])


def _line_with(told: Sequence[str], part: str) -> str:
    return next((line for line in reversed(told) if part in line), "")
