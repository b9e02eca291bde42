"""README and docs: links lead somewhere, examples print what is shown, recipes name existing files."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\(([^)#\s]+?)(?:#[^)]*)?\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_relative_link_of_a_page_leads_to_a_file(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    targets = [target for target in LINK.findall(text) if "://" not in target]
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_the_readme_is_short_and_its_library_example_prints_what_it_shows(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 130
    blocks = re.findall(r"```(\w*)\n(.*?)```", text, flags=re.DOTALL)
    at = next(index for index, (language, _) in enumerate(blocks) if language == "python")
    program = tmp_path / "readme.py"
    program.write_text(blocks[at][1], encoding="utf-8")
    printed = subprocess.run([sys.executable, program], check=True, capture_output=True, text=True).stdout
    assert printed == blocks[at + 1][1]


def test_recipes_name_files_that_exist_and_none_has_more_than_eight() -> None:
    """A name in angle brackets stands for a new file; its folder exists."""
    text = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    recipes = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    assert len(recipes) == 10
    for recipe in recipes:
        title = recipe.partition("\n")[0]
        paths = re.findall(r"^\d+\. `([^`]+)`", recipe, flags=re.MULTILINE)
        assert 1 <= len(paths) <= 8, title
        missing = [path for path in paths if not (ROOT / existing_part(path)).exists()]
        assert missing == [], title


def existing_part(path: str) -> str:
    """The part of a path before the first piece that stands for a new name."""
    return path if "<" not in path else path.partition("<")[0].rpartition("/")[0]


@pytest.mark.parametrize("name", ["security", "reliability"])
def test_each_row_of_the_failure_and_attack_tables_names_a_test_that_exists(name: str) -> None:
    rows = [
        row
        for row in (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8").splitlines()
        if row.startswith("|")
    ]
    header, missing, untested = "", [], []
    for number, row in enumerate(rows):
        if number + 1 < len(rows) and rows[number + 1].startswith("|---"):
            header = row
        if "tested by" not in header or row == header or row.startswith("|---"):
            continue
        references = re.findall(r"`([^`]+)`", row.rstrip(" |").rpartition("|")[2])
        if not references:
            untested.append(row)
        folder = Path("tests")
        for reference in references:
            path, _, function = reference.partition("::")
            target = ROOT / path if path.startswith("tests/") else ROOT / folder / path
            folder = target.parent.relative_to(ROOT)
            files = list(target.parent.glob(target.name)) or ([target] if target.is_dir() else [])
            if not files or (function and f"def {function}(" not in files[0].read_text(encoding="utf-8")):
                missing.append(reference)
    assert missing == []
    assert untested == []
