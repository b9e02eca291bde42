"""The project's rules: the wheel is tested, promises have tests, checks find violations."""

import json
import re
import tomllib
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

import pytest

import dragoman
from tools.checks import package_map, places, promises, references, shape, sizes, words
from tools.checks.findings import Finding

ROOT = Path(__file__).parents[1]
CLIENTS = (
    *("tests/clients", "tests/mcp/clients", "tests/doors/clients"),
    *("tests/responses/clients", "tests/responses/codex"),
)
ALIASES = {
    "ai6",
    "ai601",
    "ai7",
    "anthropic6",
    "anthropic7",
    "compatible6",
    "compatible7",
    "openai6",
    "openai7",
    "react6",
}  # other versions of packages that have a row
Check = Callable[[Path], Iterator[Finding]]


def test_the_tests_run_against_the_installed_wheel() -> None:
    assert "site-packages" in Path(dragoman.__file__).parts


@pytest.mark.promise("types-ship")
def test_the_installed_package_carries_its_types() -> None:
    assert Path(dragoman.__file__).with_name("py.typed").is_file()


def test_every_promise_has_a_test_and_every_mark_a_promise() -> None:
    assert list(promises.check(ROOT)) == []


def test_every_dependency_has_its_reason_written_down() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    for name in ("dev.in", "clients.in"):
        wanted += (ROOT / "requirements" / name).read_text(encoding="utf-8").splitlines()
    for package in CLIENTS:
        wanted += json.loads((ROOT / package / "package.json").read_text(encoding="utf-8"))["devDependencies"]
    rows = re.findall(
        r"^\| (.*?) \|", (ROOT / "docs/dependencies.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    written = {name.split(" ")[0] for row in rows for name in row.split(", ")}
    names = {re.split(r"[>=<\[]", line)[0].strip() for line in wanted if not line.startswith("#")}
    assert names - written == ALIASES


def function(*body: str, head: str = "def run(self)") -> str:
    return f'"""Runs."""\n\n\n{head}:\n' + "\n".join(body or ("    return 1",)) + "\n"


NESTED = ("    if a:", "        for b in a:", "            with b:", "                if b: ...")
BROKEN: dict[str, tuple[Check, str, str, str]] = {
    "a function of 51 lines": (sizes.check, "runs.py", function(*["    a = 1"] * 50), "51 lines"),
    "a file of 501 lines": (sizes.check, "runs.py", "a = 1\n" * 501, "501 lines"),
    "a block nested 4 deep": (sizes.check, "runs.py", function(*NESTED), "nested 4 deep"),
    "seven": (
        sizes.check,
        "runs.py",
        function(head="def run(*, a, b, c, d, e, f, g)"),
        "7 parameters",
    ),
    "3 by position": (sizes.check, "runs.py", function(head="def run(a, b, c)"), "keyword-only"),
    "a vague module": (shape.check, "http_utils.py", '"""Odds and ends."""\n', "'utils'"),
    "a vague class": (shape.check, "runs.py", '"""Runs."""\n\n\nclass RunInfo: ...\n', "RunInfo"),
    "no docstring": (shape.check, "runs.py", "a = 1\n", "no docstring"),
    "code in __init__": (shape.check, "__init__.py", '"""Runs."""\n\na = 1\n', "re-exports"),
    "a hidden import": (shape.check, "runs.py", function("    import mcp"), "import inside a body"),
    "half of the errors of decoding": (
        shape.check,
        "runs.py",
        function("    try:\n        pass\n    except msgspec.DecodeError:\n        pass"),
        "catch `DECODE_ERRORS`",
    ),
    "digits that int refuses": (
        shape.check,
        "runs.py",
        function("    return int(text) if text.isdigit() else None"),
        "use `parse_digits`",
    ),
    "a name that says nothing": (words.check, "runs.py", function("    said = 1"), "'said'"),
    "a phrase": (words.check, "runs.py", '"""Runs."""\n\nTEXT = "x is ' + 'no rate"\n', "write 'is not a …'"),
    "a class name twice": (
        words.check,
        "runs.py",
        '"""Runs."""\n\n\nclass Run: ...\n\n\nclass Other:\n    class Run: ...\n',
        "class Run is also in",
    ),
    "a reference to nothing": (
        references.check,
        "runs.py",
        '"""Runs."""\n\n\nclass Run:\n    """See `Run.end`."""\n',
        "`Run.end` is not in the package",
    ),
    "an old map": (package_map.check, "runs.py", '"""Runs."""\n', "make map"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_check_notices_what_it_forbids(case: str, tmp_path: Path) -> None:
    check, name, text, rule = BROKEN[case]
    found = list(check(project(tmp_path, name, text)))
    assert [rule in finding.rule for finding in found] == [True]


def test_a_check_counts_the_modules_of_a_package(tmp_path: Path) -> None:
    package = project(tmp_path, "__init__.py", '"""Runs."""\n') / "src" / "dragoman"
    for number in range(sizes.PACKAGE_MODULES):
        (package / f"part_{number}.py").touch()
    assert list(sizes.check(tmp_path)) == []
    (package / "one_more.py").touch()
    assert ["29 modules" in finding.rule for finding in sizes.check(tmp_path)] == [True]


KEPT: dict[str, str] = {
    "a chain of elif": function(*(f"    {'el' * (n > 0)}if a == {n}: ..." for n in range(5))),
    "ASGI's signature": function(head="async def app(scope, receive, send)"),
    "a special method": '"""Runs."""\n\n\nclass Run:\n    def __exit__(self, a, b, c): ...\n',
    "a late import with its reason": function("    import mcp  # late: takes a second"),
    "two by position, the rest by name": function(head="def run(a, b, *, c, d)"),
}


@pytest.mark.parametrize("case", KEPT)
def test_a_check_lets_pass_what_the_style_allows(case: str, tmp_path: Path) -> None:
    root = project(tmp_path, "runs.py", KEPT[case])
    assert [*sizes.check(root), *shape.check(root)] == []


def project(root: Path, name: str, text: str) -> Path:
    """A project of one module."""
    package = root / "src" / "dragoman"
    package.mkdir(parents=True)
    (package / name).write_text(text, encoding="utf-8")
    (root / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    return root


@pytest.mark.parametrize(
    "line",
    [
        "open('/" + "work/main/hub.db')",
        "see /" + "root/notes.md",
        "--index" + "-url https://packages.example/simple",
        '"resolved": ' + '"https://packages.example/ai.tgz"',
        "https://pypi" + ".org/project/dragoman",
    ],
)
def test_a_registry_or_a_path_of_a_machine_in_a_file_is_noticed(line: str) -> None:
    assert len(list(places.check_text("README.md", line))) == 1


@pytest.mark.parametrize("line", ["POST /api/work/items", "https://site.example/root/a", "./work/a"])
def test_a_path_that_only_looks_like_a_machine_s_is_let_pass(line: str) -> None:
    assert list(places.check_text("README.md", line)) == []


def test_the_map_lists_each_package_once_in_the_order_of_the_layers(tmp_path: Path) -> None:
    root = project(tmp_path, "errors.py", '"""Every error."""\n')
    (root / "src/dragoman/wire").mkdir()
    (root / "src/dragoman/wire/__init__.py").write_text('"""Bytes and events."""\n', encoding="utf-8")
    (root / "src/dragoman/wire/sse.py").write_text('"""Server-sent events.\n\nMore."""\n', encoding="utf-8")
    package_map.write(root)
    drawn = (root / "docs/map.md").read_text(encoding="utf-8")
    rows = "| `wire/` | Bytes and events. |\n| `errors.py` | Every error. |\n"
    assert drawn == f"{package_map.HEAD}{rows}"
    assert list(package_map.check(root)) == []
