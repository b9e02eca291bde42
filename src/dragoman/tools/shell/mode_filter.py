"""A seccomp filter that refuses the set-user-id and set-group-id bits to a sandboxed command.

The files of a workspace belong to the user that the hub runs as. With one of these bits, a file that a model
wrote would run with that user's rights for every other user of this machine. A mount option (`nosuid`) only
protects the command's own view of the workspace, so the system calls that set a mode are filtered. A filter
cannot read the mode of some calls (`openat2`, `io_uring`): they fail as on a kernel that lacks them, and
programs use the older ones. Nor can it see what is at a path, so the set-group-id bit of a folder, which
grants no rights, is refused as well.

Source: linux/seccomp.h, linux/filter.h and the tables of system calls of Linux 6.12.
"""

from __future__ import annotations

import errno
import re
import struct
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple, TypeAlias

SET_ID_BITS = 0o6000
CREATING = 0o100 | 0o20000000  # O_CREAT and O_TMPFILE: without them `open` has no mode
X32_BIT = 0x40000000
LOAD, JUMP_EQUAL, JUMP_GREATER_EQUAL, JUMP_SET, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
NUMBER, ARCHITECTURE, ARGUMENTS = 0, 4, 16  # offsets in `struct seccomp_data`
ALLOW = 0x7FFF0000
REFUSE = 0x00050000
LACKING = (437, 425)  # openat2, io_uring_setup: of the same number everywhere


class ModeCall(NamedTuple):
    """A system call: its number, and the positions of its mode and of the flags that make it use the mode."""

    number: int
    mode: int
    flags: int | None = None


FCHMODAT2 = ModeCall(452, 2)
# open, creat, openat, chmod, fchmod, fchmodat, mknod, mknodat
X86_64 = (
    ModeCall(2, 2, flags=1), ModeCall(85, 1), ModeCall(257, 3, flags=2), ModeCall(90, 1), ModeCall(91, 1),
    ModeCall(268, 2), ModeCall(133, 1), ModeCall(259, 2), FCHMODAT2,
)  # fmt: skip
I386 = (
    ModeCall(5, 2, flags=1), ModeCall(8, 1), ModeCall(295, 3, flags=2), ModeCall(15, 1), ModeCall(94, 1),
    ModeCall(306, 2), ModeCall(14, 1), ModeCall(297, 2), FCHMODAT2,
)  # fmt: skip
ARM = (
    ModeCall(5, 2, flags=1), ModeCall(8, 1), ModeCall(322, 3, flags=2), ModeCall(15, 1), ModeCall(94, 1),
    ModeCall(333, 2), ModeCall(14, 1), ModeCall(324, 2), FCHMODAT2,
)  # fmt: skip
POWERPC = (
    ModeCall(5, 2, flags=1), ModeCall(8, 1), ModeCall(286, 3, flags=2), ModeCall(15, 1), ModeCall(94, 1),
    ModeCall(297, 2), ModeCall(14, 1), ModeCall(288, 2), FCHMODAT2,
)  # fmt: skip
S390 = (
    ModeCall(5, 2, flags=1), ModeCall(8, 1), ModeCall(288, 3, flags=2), ModeCall(15, 1), ModeCall(94, 1),
    ModeCall(299, 2), ModeCall(14, 1), ModeCall(290, 2), FCHMODAT2,
)  # fmt: skip
GENERIC = (ModeCall(56, 3, flags=2), ModeCall(52, 1), ModeCall(53, 2), ModeCall(33, 2), FCHMODAT2)
LITTLE_ENDIAN = 0x40000000  # of an architecture
TABLES = {
    0xC000003E: X86_64,
    0x40000003: I386,
    0x40000028: ARM,
    0xC00000B7: GENERIC,  # aarch64
    0xC00000F3: GENERIC,  # riscv64
    0x400000F3: GENERIC,  # riscv32
    0xC0000102: GENERIC,  # loongarch64
    0xC0000015: POWERPC,  # ppc64le
    0x80000015: POWERPC,  # ppc64
    0x00000014: POWERPC,  # ppc
    0x80000016: S390,  # s390x
    0x00000016: S390,
}
MACHINES = re.compile(r"x86_64|i[3-6]86|aarch64|arm.*|riscv(32|64)|loongarch64|ppc(64)?(le)?|s390x?")
Instruction: TypeAlias = tuple[int, int, int, int]
"""Code, jump if true, jump if false, operand."""


def is_known_machine(machine: str) -> bool:
    """Return whether the filter has the system calls of a machine, by its name in `uname`."""
    return MACHINES.fullmatch(machine) is not None


@cache
def mode_filter() -> bytes:
    """Return the filter as bubblewrap reads it: `struct sock_filter`, one after the other."""
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in filter_program())


def filter_program() -> Sequence[Instruction]:
    """Return the instructions for all architectures. A program of any other architecture cannot start."""
    program: list[Instruction] = []
    for architecture, calls in TABLES.items():
        table = table_program(calls, architecture)
        program += [(LOAD, 0, 0, ARCHITECTURE), (JUMP_EQUAL, 0, len(table), architecture), *table]
    return [*program, (RETURN, 0, 0, REFUSE | errno.ENOSYS)]


def table_program(calls: Sequence[ModeCall], architecture: int) -> list[Instruction]:
    """Return the instructions of one architecture."""
    lower = 0 if architecture & LITTLE_ENDIAN else 4
    program: list[Instruction] = [(LOAD, 0, 0, NUMBER)]
    lacking = [(JUMP_GREATER_EQUAL, X32_BIT)] if calls is X86_64 else []
    for code, operand in [*lacking, *((JUMP_EQUAL, number) for number in LACKING)]:
        program += [(code, 0, 1, operand), (RETURN, 0, 0, REFUSE | errno.ENOSYS)]
    for call in calls:
        check = call_program(call, lower=lower)
        program += [(JUMP_EQUAL, 0, len(check), call.number), *check]
    return [*program, (RETURN, 0, 0, ALLOW)]


def call_program(call: ModeCall, *, lower: int) -> list[Instruction]:
    """Return the instructions that decide about one system call.

    Arguments have 64 bits, of which the filter loads 32: `lower` is the offset of the lower half.
    """
    mode = ARGUMENTS + 8 * call.mode + lower
    check: list[Instruction] = [(LOAD, 0, 0, mode), (JUMP_SET, 0, 1, SET_ID_BITS)]
    check += [(RETURN, 0, 0, REFUSE | errno.EPERM), (RETURN, 0, 0, ALLOW)]
    if call.flags is None:
        return check
    flags = ARGUMENTS + 8 * call.flags + lower
    return [(LOAD, 0, 0, flags), (JUMP_SET, 0, len(check) - 1, CREATING), *check]
