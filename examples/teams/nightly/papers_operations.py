"""The papers that the research team reads: files of `papers/`, one a paper, by the order of their names."""

from pathlib import Path

from dragoman.operations import operation

PAPERS = Path("papers")


@operation("papers", effect="read")
def after(last: str = "") -> list[str]:
    """List the papers behind one, by name.

    Args:
        last: The last paper that was read.
    """
    return sorted(path.name for path in PAPERS.glob("*.md") if path.name > last)


@operation("papers", effect="read")
def read(name: str) -> str:
    """Read a paper.

    Args:
        name: Its name, as papers.after lists it.
    """
    return (PAPERS / Path(name).name).read_text(encoding="utf-8")
