"""The order of the samples in a pass, without a list of them.

A run must be able to say which sample stands at a position of a pass at any time and at once: after a
failure, after a restart, on a machine that has just joined, for a data set of a billion samples. A shuffled
list answers that only after it has been made, in full, the same way everywhere. A *permutation by
arithmetic* answers it in a few microseconds from (seed, pass, position) and keeps nothing.

It is a Feistel network. The numbers below `n` are laid out in a grid of about √n by √n; one round moves each
column down by an amount that depends on the column alone, the next moves each row sideways by an amount that
depends on the row alone. Each such move can be undone, so whatever the amounts are, no two numbers meet, and
after a few rounds nothing is left of the order. The grid is only just larger than `n`; a number that lands
in the surplus is sent through once more, until it is inside (*cycle walking*), which keeps it a permutation.

The amounts come from integer arithmetic with keys made of (seed, pass): the same on every machine.
"""

from __future__ import annotations

import math

from outlast.train.mixing import Purpose, mix

_MASK = (1 << 64) - 1
_FACTOR_A = 0xD6E8FEB86659FD93
_FACTOR_B = 0xA0761D6478BD642F


class Shuffle:
    """A pseudo-random permutation of `range(length)` for each pass."""

    def __init__(self, length: int, seed: int) -> None:
        assert length >= 1, "there is nothing to shuffle in an empty data set"
        self._length = length
        self._seed = seed
        # Even, because shifting a column of odd length is an even permutation, whatever the amount. If both
        # sides were odd, half of all orders could never come up.
        side = math.isqrt(length - 1) + 1
        self._rows = side + side % 2
        self._columns = -(-length // self._rows)
        # A small grid is stirred slowly, because a move takes many numbers along at once. How many rounds are
        # enough was found by counting permutations, neighbours and places over thousands of passes.
        self._round_pairs = 24 if length < 64 else 4 if length < 4096 else 3
        self._keyed: tuple[int, list[tuple[int, int]]] = (-1, [])

    def at(self, pass_: int, position: int) -> int:
        """The sample at a position of a pass."""
        return self.run(pass_, position, position + 1)[0]

    def run(self, pass_: int, start: int, stop: int) -> list[int]:
        """The samples at the positions `start`, …, `stop - 1`; 256 of them take about half a millisecond."""
        length, rows, columns, keys = self._length, self._rows, self._columns, self._keys_of(pass_)
        assert 0 <= start <= stop <= length, f"positions {start} to {stop} of {length}"
        samples = []
        for position in range(start, stop):
            sample = position
            # At most the surplus of the grid, which is less than one row of it, can be walked through.
            while True:
                row, column = divmod(sample, columns)
                for row_key, column_key in keys:
                    # Written out twice: calling a function for it would double the time of a batch.
                    word = (column ^ row_key) * _FACTOR_A & _MASK
                    row = (row + ((word ^ (word >> 32)) * _FACTOR_B >> 29)) % rows
                    word = (row ^ column_key) * _FACTOR_A & _MASK
                    column = (column + ((word ^ (word >> 32)) * _FACTOR_B >> 29)) % columns
                sample = row * columns + column
                if sample < length:
                    break
            samples.append(sample)
        return samples

    def _keys_of(self, pass_: int) -> list[tuple[int, int]]:
        keyed_pass, keys = self._keyed
        if pass_ != keyed_pass:
            words = [mix(Purpose.ORDER, self._seed, pass_, index) for index in range(2 * self._round_pairs)]
            keys = list(zip(words[::2], words[1::2], strict=True))
            # One assignment, so that another thread never sees the keys of one pass as those of another.
            self._keyed = (pass_, keys)
        return keys
