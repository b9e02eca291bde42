"""Match lines: a stand-alone program that searches open files for a regular expression.

It replaces ripgrep where that is not installed. Python's regular expressions can take for ever and cannot be
interrupted, so they run in a process that can be killed. Arguments: `-i` or `-s`, the most matches of a file,
the expression, the files. Prints `file NUL line : text` for each match, as ripgrep does. Imports nothing of
the hub, so that it starts fast.
"""

from __future__ import annotations

import re
import sys


def main(arguments: list[str]) -> int:
    """Print the matching lines. Returns 1 without a match, as ripgrep."""
    ignore_case, per_file, expression, *files = arguments
    pattern = re.compile(expression, re.IGNORECASE if ignore_case == "-i" else 0)
    found = False
    for name in files:
        with open(name, "rb") as file:  # noqa: PTH123 - a descriptor's path
            lines = file.read().split(b"\n")
        count = 0
        for number, line in enumerate(lines[:-1] if lines[-1] == b"" else lines, start=1):
            text = line.decode(errors="replace")
            if pattern.search(text) is None:
                continue
            found = True
            sys.stdout.buffer.write(b"%s\0%d:%s\n" % (name.encode(), number, text[:400].encode()))
            count += 1
            if count >= int(per_file):
                break
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
