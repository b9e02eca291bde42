"""Runs the project's own checks: `python -m tools.checks [NAME …]`."""

import gc
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from tools.checks import dead, package_map, places, promises, references, shape, sizes, words
from tools.checks.findings import Finding

CHECKS: dict[str, Callable[[Path], Iterator[Finding]]] = {
    "sizes": sizes.check,
    "shape": shape.check,
    "words": words.check,
    "map": package_map.check,
    "places": places.check,
    "dead": dead.check,
    "promises": promises.check,
    "references": references.check,
}


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in CHECKS]
    if unknown:
        print(f"no check {unknown[0]!r}; there are: {', '.join(CHECKS)}")
        return 2
    root = Path.cwd()
    gc.disable()  # the syntax trees are kept for all checks: there is nothing to collect
    found = sorted(finding for name in names or CHECKS for finding in CHECKS[name](root))
    for finding in found:
        print(finding)
    print(f"project rules: {len(found)} broken" if found else "project rules: all kept")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
