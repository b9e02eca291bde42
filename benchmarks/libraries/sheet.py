"""What was measured, as tables in Markdown."""

from collections.abc import Callable, Mapping, Sequence
from statistics import median

from benchmarks.harness.table import align, number
from benchmarks.libraries.tasks import Turns
from benchmarks.libraries.trial import Cost, Found

KIB, MEGABYTE, THOUSANDTH = 1024.0, 1e6, 1000.0
Results = Mapping[str, Sequence[Found]]
Absences = Mapping[str, str]


def turn_table(task: Turns, results: Results, absent: Absences) -> str:
    """Turns of each library; the first one is what the others are compared with."""
    head = ["library", "turns a CPU-s", "lowest to highest", "× the first", "CPU ms a turn"]
    head += ["p50 ms", "p99 ms", "MB at most"]
    least = rate(next(iter(results.values()), ()))
    lines = [head, *(turn_row(name, found, least) for name, found in results.items() if found)]
    about = f"{task.at_once} at the same time" if task.at_once > 1 else "one after the other"
    return section(f"{task.title}, {about}", lines, absent)


def turn_row(name: str, found: Sequence[Found], least: float) -> list[str]:
    """One library's turns: medians over the rounds."""
    rates = sorted(each["turns"] / each["cpu"] for each in found)
    return [
        name,
        number(median(rates)),
        f"{number(rates[0])} to {number(rates[-1])}",
        number(median(rates) / least) if least else "",
        number(THOUSANDTH / median(rates)),
        number(middle(found, "p50") * THOUSANDTH),
        number(middle(found, "p99") * THOUSANDTH),
        number(middle(found, "peak") / MEGABYTE),
    ]


def rate(found: Sequence[Found]) -> float:
    """Turns a CPU-second, the median of the rounds; 0 where there are none."""
    return median(each["turns"] / each["cpu"] for each in found) if found else 0.0


def memory_table(columns: Mapping[str, Results], absent: Absences, *, count: int) -> str:
    """KiB an agent, a column for each kind of agents, and the CPU that making one takes."""
    kinds = list(columns)
    lines = [["library", *(f"KiB, {kind}" for kind in kinds), "µs to make one", "µs with its own tool"]]
    for name in next(iter(columns.values())):
        if all(columns[kind][name] for kind in kinds):
            cells = [number(middle(columns[kind][name], "each") / KIB) for kind in kinds]
            making = [made(columns[kind][name]) for kind in (kinds[0], kinds[2])]
            lines.append([name, *cells, *making])
    title = f"{count:,} idle agents with instructions of their own; a fifth as many behind the first column"
    return section(title, lines, absent)


def made(found: Sequence[Found]) -> str:
    """The CPU that making an agent took, in µs."""
    return number(median(each["cpu"] / each["count"] for each in found) * 1e6)


def import_table(columns: Mapping[str, Mapping[str, Sequence[Cost]]], absent: Absences) -> str:
    """What it takes to begin: importing with and without bytecode, and a whole script of one turn."""
    kinds = list(columns)
    lines = [["library", *(f"{kind}, CPU s" for kind in kinds), f"{kinds[-1]}, MB at most"]]
    for name in columns[kinds[0]]:
        found = [columns[kind].get(name, ()) for kind in kinds]
        if any(found):
            memory = cells(found[-1:], lambda each: each.peak / MEGABYTE)
            lines.append([name, *cells(found, lambda each: each.cpu), *memory])
    return section("From nothing", lines, absent)


def cells(found: Sequence[Sequence[Cost]], read: Callable[[Cost], float]) -> list[str]:
    """The medians, empty where nothing was measured."""
    return [number(median(read(each) for each in costs)) if costs else "" for costs in found]


def middle(found: Sequence[Found], name: str) -> float:
    """The median of a figure over the rounds."""
    return median(each[name] for each in found)


def section(title: str, lines: Sequence[Sequence[str]], absent: Absences) -> str:
    """A table under its title, and who is not in it."""
    notes = [f"- {name}: ABSENT: {reason}" for name, reason in absent.items()]
    return "\n".join([f"## {title}\n", *align(lines), "", *notes, *([""] if notes else [])])
