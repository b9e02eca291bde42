"""A workspace as a command may leave it: what a program that opens it has to be ready for."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LEVELS = 1_500


@contextmanager
def odd_tree(folder: Path) -> Iterator[None]:
    """Fill a folder, beside which a file `outside/needle.txt` is not to be found."""
    outside = folder.parent / "outside"
    outside.mkdir()
    (outside / "needle.txt").write_text("needle outside\n")
    (folder / "link").symlink_to(outside)
    (folder / "link.txt").symlink_to(outside / "needle.txt")
    (folder / "loop").symlink_to("loop")
    os.mkfifo(folder / "pipe.txt")
    (folder / "new\nline.txt").write_text("needle\n")
    Path(os.fsdecode(bytes(folder) + b"/bad\xff.txt")).write_text("needle\n")
    with (folder / "sparse.txt").open("wb") as sparse:
        sparse.write(b"needle\n")
        sparse.truncate(2**42)
    make_levels(folder)
    try:
        yield
    finally:  # shutil.rmtree would recurse
        subprocess.run(["rm", "-rf", folder / "deep"], check=True)


def make_levels(folder: Path) -> None:
    """Put folders within each other, so deep that a path is too long, with files of long names."""
    here = os.open(folder, os.O_RDONLY)
    name = "deep"
    for level in range(LEVELS):
        os.mkdir(name, dir_fd=here)
        below = os.open(name, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here, name = below, "dd"
        if level % 100 == 99:
            os.close(os.open("f" * 250, os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.close(here)
