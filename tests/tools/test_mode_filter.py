"""The seccomp filter of the sandbox, for all architectures, run as the kernel does: with one register."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable, Mapping

import pytest

from dragoman.tools.shell.mode_filter import (
    ALLOW,
    JUMP_EQUAL,
    JUMP_GREATER_EQUAL,
    JUMP_SET,
    LITTLE_ENDIAN,
    LOAD,
    REFUSE,
    TABLES,
    filter_program,
    is_known_machine,
    mode_filter,
)

JUMPS: Mapping[int, Callable[[int, int], bool]] = {
    JUMP_EQUAL: lambda value, operand: value == operand,
    JUMP_GREATER_EQUAL: lambda value, operand: value >= operand,
    JUMP_SET: lambda value, operand: bool(value & operand),
}
CREATE, READ = os.O_CREAT | os.O_WRONLY, os.O_RDONLY
# The system calls by number: open, creat, openat, chmod, fchmod, fchmodat, fchmodat2, mknod, mknodat
NUMBERS = {
    0xC000003E: (2, 85, 257, 90, 91, 268, 452, 133, 259),  # x86_64
    0x40000003: (5, 8, 295, 15, 94, 306, 452, 14, 297),  # i386
    0x40000028: (5, 8, 322, 15, 94, 333, 452, 14, 324),  # arm
    0xC00000B7: (None, None, 56, None, 52, 53, 452, None, 33),  # aarch64
    0xC00000F3: (None, None, 56, None, 52, 53, 452, None, 33),  # riscv64
    0x400000F3: (None, None, 56, None, 52, 53, 452, None, 33),  # riscv32
    0xC0000102: (None, None, 56, None, 52, 53, 452, None, 33),  # loongarch64
    0xC0000015: (5, 8, 286, 15, 94, 297, 452, 14, 288),  # ppc64le
    0x80000015: (5, 8, 286, 15, 94, 297, 452, 14, 288),  # ppc64
    0x00000014: (5, 8, 286, 15, 94, 297, 452, 14, 288),  # ppc
    0x80000016: (5, 8, 288, 15, 94, 299, 452, 14, 290),  # s390x
    0x00000016: (5, 8, 288, 15, 94, 299, 452, 14, 290),  # s390
}


def decide(architecture: int, number: int, *arguments: int) -> int:
    """What the filter returns for a system call."""
    order = "<" if architecture & LITTLE_ENDIAN else ">"
    values = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack(f"{order}IIQ6Q", number, architecture, 0, *values)
    program, at, value = filter_program(), 0, 0
    while True:
        code, when_true, when_false, operand = program[at]
        at += 1
        if code == LOAD:
            (value,) = struct.unpack_from(f"{order}I", data, operand)
        elif code in JUMPS:
            at += when_true if JUMPS[code](value, operand) else when_false
        else:
            return operand


def calls(architecture: int, mode: int, *, flags: int = CREATE) -> list[tuple[int, ...]]:
    """Each system call that this architecture has with this mode."""
    arguments = [
        (0, flags, mode), (0, mode), (0, 0, flags, mode), (0, mode), (0, mode), (0, 0, mode), (0, 0, mode),
        (0, mode), (0, 0, mode),
    ]  # fmt: skip
    found = zip(NUMBERS[architecture], arguments, strict=True)
    return [(number, *values) for number, values in found if number is not None]


def test_all_architectures_of_the_filter_are_tested() -> None:
    assert NUMBERS.keys() == TABLES.keys()


@pytest.mark.parametrize("architecture", NUMBERS, ids=hex)
def test_only_modes_with_a_bit_that_lends_rights_are_refused(architecture: int) -> None:
    for mode in (0o4755, 0o2755, 0o6000, 0xFFFF_FFFF_0000_0000 | 0o2000):
        answers = {decide(architecture, *call) for call in calls(architecture, mode)}
        assert answers == {REFUSE | errno.EPERM}
    for mode in (0o755, 0o1777, 0o6000 << 32):
        assert {decide(architecture, *call) for call in calls(architecture, mode)} == {ALLOW}
    opened = (0, 2)  # open and openat: without a new file they have no mode
    numbers = [NUMBERS[architecture][index] for index in opened]
    found = [call for call in calls(architecture, 0o4755, flags=READ) if call[0] in numbers]
    assert {decide(architecture, *call) for call in found} == {ALLOW}
    for number in (437, 425):
        assert decide(architecture, number, 0) == REFUSE | errno.ENOSYS


def test_system_calls_of_other_architectures_are_those_that_the_kernel_lacks() -> None:
    assert decide(0x80000008, 1) == REFUSE | errno.ENOSYS  # mips64
    assert decide(0xC000003E, 0x40000000 | 90, 0, 0o4755) == REFUSE | errno.ENOSYS  # x32


def test_the_filter_has_a_size_that_the_kernel_accepts() -> None:
    assert len(mode_filter()) / 8 == len(filter_program()) < 4_096
    assert all(0 <= jump < 256 for _, *jumps, _ in filter_program() for jump in jumps)


def test_machines_are_known_by_their_names() -> None:
    machines = ["x86_64", "i686", "aarch64", "armv7l", "riscv64", "loongarch64", "ppc64le", "ppc64", "s390x"]
    assert [name for name in [*machines, "mips64", "sparc64", "alpha"] if is_known_machine(name)] == machines
