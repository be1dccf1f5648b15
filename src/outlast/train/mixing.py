"""Seeds made of the numbers that name a piece of work.

Plain integer arithmetic, so it is the same on every machine and in every version of everything, and it must
stay as it is: another `mix` is another training run. It needs no torch: whoever wants only the order of the
samples, as an audit does, does not have to wait two seconds for it.
"""

from __future__ import annotations

MASK = (1 << 64) - 1
"""The 64 bits of a seed."""
_STRIDE = 0x9E3779B97F4A7C15


class Purpose:
    """The first number that is mixed, so that equal names in different places give unrelated randomness."""

    ORDER = 1
    SAMPLE = 2
    SHARD = 3
    COLLATE = 4
    COMPUTE = 5
    AUDIT = 6


def mix(*numbers: int) -> int:
    """64 well-mixed bits of these numbers and their order; each number counts modulo 2**64."""
    state = _scramble(len(numbers) + _STRIDE)
    for number in numbers:
        # Adding the stride keeps a run of zeros from leaving the state where it is.
        state = _scramble((state + _STRIDE & MASK) ^ _scramble(number & MASK))
    return state


def _scramble(word: int) -> int:
    # The multipliers are those of SplitMix64. Each line can be undone, so no two words become one.
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB & MASK
    return word ^ (word >> 31)
