"""Places: no package registry's host and no path of somebody's machine stands in any file."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tools.checks.findings import Finding

FORBIDDEN = {
    "a path of somebody's machine": re.compile(r"(?<![\w.-])/(?:work|farm|root)/[A-Za-z.]"),
    "the host of a package registry": re.compile(
        r"\b(?:pypi\.(?:org|python)|pythonhosted\.org|registry\.(?:npmjs|yarnpkg)\.|npmjs\.com|deb\.debian\.org)"
    ),
    "an address in a lock file": re.compile(r'"resolved":\s*"http|url\s*=\s*"https?://\S+\.(?:whl|tar\.gz)"'),
    "an index option": re.compile(
        r"(?:^|\s)--(?:extra-)?index-url\b|^-i\s|\bregistry\s*=\s*\"?https?://", re.MULTILINE
    ),
}


def check(root: Path) -> Iterator[Finding]:
    for path in tracked(root):
        yield from check_text(path, read(root / path))


def check_text(path: str, text: str) -> Iterator[Finding]:
    lines = text.splitlines()
    text = "\n".join(lines)
    if not any(pattern.search(text) for pattern in FORBIDDEN.values()):
        return
    for number, line in enumerate(lines, start=1):
        for what, pattern in FORBIDDEN.items():
            if found := pattern.search(line):
                yield Finding(path, number, f"{what}: {found[0].strip()!r}")


def tracked(root: Path) -> list[str]:
    """What git tracks, or would after `git add`."""
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(listing, cwd=root, check=True, capture_output=True, text=True).stdout
    return sorted(name for name in set(names.split("\0")) if name and (root / name).is_file())


def read(path: Path) -> str:
    """The file's text; nothing for a binary file."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""
