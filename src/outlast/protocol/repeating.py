"""States that differ again: was it a machine, or is it the script?

A bit that flips does not flip again when the same steps are done once more. Something that the script does on
one replica only, under `if job.chief` say, does: members go back, do the same steps, and differ in the same
place. So members say with the digest of a state also digests of its *entries* (each tensor, each plain value;
`state/entries.py`), and remember in which of them they differed. It is the script's doing, as far as anybody
can tell, when states differ in an entry in which they have differed before, and

- no state was verified in between that is as new as those: the same steps have been done again, by whichever
  of the members; or
- it is the same member again that differs from the majority, and no life of it has agreed with the others in
  between: it was given their state, and made something else of it at once; or
- the entry is a *plain* value, such as a learning rate. These are a few bytes among billions: that a flip
  finds one may happen, that two do is not to be believed.

Then nobody is evicted, since it would be nobody's fault: the job ends, and names the entries. A machine that
flips bits here and there is not taken for the script, as it hits other entries each time.

The very same two states, or more, are a sign, too, where nothing is known of entries: that is how it is with
buffers, whose entries are not told before members have gone back once.

What members remember they say in their parts, so all come to the same conclusion, and who is new learns it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from outlast.protocol.step_words import Check, Difference

NAME_BYTES = 4
ENTRY_BYTES = 8
"""Its name, and its digest."""
PLAIN = 1
"""The bit of a name that says that its entry is a plain value."""


PRIME = 4_294_967_291


def unpacked(entries: bytes) -> dict[int, int]:
    """Name → digest. From a peer, so whatever it is, it is no error."""
    starts = range(0, len(entries) - ENTRY_BYTES + 1, ENTRY_BYTES)
    return {_number(entries[at : at + 4]): _number(entries[at + 4 : at + 8]) for at in starts}


def packed(entries: Mapping[int, int]) -> bytes:
    return b"".join(_bytes(name) + _bytes(digest) for name, digest in entries.items())


def differing(entries: Mapping[int, bytes]) -> dict[int, dict[int, int | None]]:
    """The entries that are not the same on all members: name → member → digest, None where there is none.
    Nothing is known if one of them says nothing."""
    if not all(entries.values()):
        return {}
    tables = {replica: unpacked(one) for replica, one in sorted(entries.items())}
    names = {name: None for table in tables.values() for name in table}
    found = {name: {replica: table.get(name) for replica, table in tables.items()} for name in names}
    return {name: digests for name, digests in found.items() if len(set(digests.values())) > 1}


def difference(
    step: int,
    members: tuple[int, ...],
    digests: Iterable[bytes],
    names: Iterable[int],
    before: Iterable[Difference],
) -> Difference:
    """What is to be remembered of states after this step that have these digests, and differ in these
    entries."""
    # The states themselves count as an entry that nothing else is called like.
    states = 0
    for digest in set(digests):
        states ^= int.from_bytes(digest, "little") % PRIME
    now = {*names, states & ~PLAIN}
    plain = {name for name in now if name & PLAIN}
    for earlier in before:
        plain |= _names(earlier.plain)
    return Difference(step, members, _packed_names(now), _packed_names(plain))


def repeats(now: Difference, verified: int, before: Iterable[Difference]) -> bool:
    """Whether it is what was seen before. The newest verified state is the one after step `verified`."""
    names = _names(now.names)
    for earlier in before:
        same_steps = verified < earlier.step
        same_member = bool(set(now.members) & set(earlier.members))
        if names & _names(earlier.names) and (same_steps or same_member):
            return True
        if names & _names(earlier.plain):
            return True
    return False


def remembered(checks: Iterable[Check | None]) -> list[Difference]:
    """What those remember who have made these parts."""
    return [check.before for check in checks if check is not None and check.before is not None]


def after_agreeing(before: Difference | None, agreed: Iterable[int]) -> Difference | None:
    """These members have had the same state: nothing is held against them any more."""
    if before is None:
        return None
    members = tuple(member for member in before.members if member not in set(agreed))
    return Difference(before.step, members, before.names, before.plain)


def _names(some: bytes) -> set[int]:
    return {_number(some[at : at + NAME_BYTES]) for at in range(0, len(some) - NAME_BYTES + 1, NAME_BYTES)}


def _packed_names(names: set[int]) -> bytes:
    return b"".join(_bytes(name) for name in sorted(names))


def _number(some: bytes) -> int:
    return int.from_bytes(some, "little")


def _bytes(number: int) -> bytes:
    return number.to_bytes(NAME_BYTES, "little")
