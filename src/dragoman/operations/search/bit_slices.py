"""Bit-sliced arithmetic: a small number for each of many slots, stored bit by bit in long ints.

The slice at index n is an int; its bit p is bit n of the number in slot p. Adding the numbers of a hundred
thousand slots takes a few int operations for each bit, some microseconds in all (O'Neil and Quass, "Improved
Query Performance with Variant Indexes", 1997).
"""

from __future__ import annotations

import re
import sys
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import compress
from operator import itemgetter

SHORT_MASK = 4_096  # bytes up to which a mask is read without a regular expression
NONZERO_BYTE = re.compile(rb"[^\0]", re.DOTALL)
BITS = tuple(1 << bit for bit in range(8))
FEW = 4  # slots that are read one by one
WORD = "Q"  # of eight slots: a byte of it is a slice, so that all bits of a number are written at once
LANES = range(8) if sys.byteorder == "little" else range(7, -1, -1)  # the byte of each slice
SPREAD = tuple(sum((byte >> bit & 1) << 8 * bit for bit in range(8)) for byte in range(256))
NONZERO_TO_ONE = bytes([0] + [1] * 255)
BITS_OF_BYTE = tuple(tuple(bit for bit in range(8) if byte >> bit & 1) for byte in range(256))


def sum_slices(addends: Iterable[tuple[Sequence[int], int]]) -> list[int]:
    """Return the sums of numbers given by their slices, each times its factor.

    Three slices of one bit become one, and a carry for the next bit, until one of each bit is left. This
    takes fewer operations than adding one number after the other, where each carry runs through all higher
    bits.
    """
    columns: list[list[int]] = []
    for slices, factor in addends:
        columns += [[] for _ in range(len(slices) + factor.bit_length() - len(columns))]
        for shift in [bit for bit in range(factor.bit_length()) if factor >> bit & 1]:
            for column, bits in zip(columns[shift:], slices, strict=False):
                column.append(bits)
    total: list[int] = []
    carries: list[int] = []
    for column in columns:
        bits, carries = _reduce_column(column + carries)
        total.append(bits)
    while carries:
        bits, carries = _reduce_column(carries)
        total.append(bits)
    while total and not total[-1]:
        total.pop()
    return total


def _reduce_column(column: list[int]) -> tuple[int, list[int]]:
    """Return the sum of the slices of one bit, and the carries for the next bit."""
    carries: list[int] = []
    while len(column) > 2:
        one, two, three = column.pop(), column.pop(), column.pop()
        half = one ^ two
        column.append(half ^ three)
        carries.append((one & two) | (half & three))
    if len(column) == 2:
        one, two = column
        carries.append(one & two)
        return one ^ two, carries
    return (column[0] if column else 0), carries


def pack_slices(numbers: Mapping[int, int]) -> list[int]:
    """Return the slices of these numbers by slot."""
    slices: list[int] = []
    places = (max(numbers, default=0) >> 3) + 1
    for first in range(0, max(numbers.values(), default=0).bit_length(), 8):
        words = array(WORD, bytes(places << 3))
        for slot, number in numbers.items():
            words[slot >> 3] |= SPREAD[number >> first & 255] << (slot & 7)
        data = words.tobytes()
        slices += [int.from_bytes(data[lane::8], "little") for lane in LANES]
    while slices and not slices[-1]:
        slices.pop()
    return slices


def to_mask(slots: Iterable[int]) -> int:
    """Return an int with the bits of these slots."""
    wanted = list(slots)
    row = bytearray((max(wanted, default=0) >> 3) + 1)
    for slot in wanted:
        row[slot >> 3] |= BITS[slot & 7]
    return int.from_bytes(row, "little")


def mask_slots(mask: int) -> Iterator[int]:
    """Return the slots of a mask, in order."""
    data = mask.to_bytes((mask.bit_length() + 7) >> 3, "little")
    if len(data) <= SHORT_MASK:  # quicker than a regular expression, unless there is much to skip
        places = list(compress(range(len(data)), data))
    else:
        places = [match.start() for match in NONZERO_BYTE.finditer(data)]
    return iter([(place << 3) + bit for place in places for bit in BITS_OF_BYTE[data[place]]])


def read_numbers(slices: Sequence[int], slots: Iterable[int]) -> dict[int, int]:
    """Return the numbers in these slots."""
    wanted = list(slots)
    if len(wanted) <= FEW:
        return {
            slot: sum((bits >> slot & 1) << index for index, bits in enumerate(slices)) for slot in wanted
        }
    size = max((max(bits.bit_length() for bits in slices) if slices else 0) >> 3, max(wanted) >> 3) + 1
    bytes_of = itemgetter(*[slot >> 3 for slot in wanted])
    bit_of_slot = int.from_bytes([BITS[slot & 7] for slot in wanted], "little")
    numbers = [0] * len(wanted)
    for first in range(0, len(slices), 8):  # eight slices are a byte of each number
        packed = 0
        for index, bits in enumerate(slices[first : first + 8]):
            found = int.from_bytes(bytes_of(bits.to_bytes(size, "little")), "little") & bit_of_slot
            ones = found.to_bytes(len(wanted), "little").translate(NONZERO_TO_ONE)
            packed |= int.from_bytes(ones, "little") << index
        values = packed.to_bytes(len(wanted), "little")
        numbers = [number + (value << first) for number, value in zip(numbers, values, strict=True)]
    return dict(zip(wanted, numbers, strict=True))


def top_mask(slices: Sequence[int], candidates: int, *, count: int) -> int:
    """Return the slots of the `count` greatest numbers, including all ties with the least of them."""
    chosen, undecided = 0, candidates
    for bits in reversed(slices):
        greater = undecided & bits
        if (chosen | greater).bit_count() <= count:
            chosen |= greater
            undecided ^= greater
        else:
            undecided = greater
    return chosen if chosen.bit_count() >= count else chosen | undecided


def at_least_mask(slices: Sequence[int], candidates: int, *, floor: int) -> int:
    """Return the slots whose number is at least `floor`."""
    if floor >> len(slices):
        return 0
    above, equal = 0, candidates
    for index in reversed(range(len(slices))):
        if floor >> index & 1:
            equal &= slices[index]
        else:
            above |= equal & slices[index]
            equal &= ~slices[index]
    return above | equal
