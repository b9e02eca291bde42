"""Words: class names are unique, variables say what they hold, texts are plain English."""

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from tools.checks.findings import Finding, Module, modules

FOLDERS = ("src", "tests", "tools", "examples", "benchmarks")
PAGES = ("README.md", "CONTRIBUTING.md", "docs/*.md")

# Participles that say how a value came here, not what it is. They stood for as many as seven types each.
VAGUE_NAMES = {"asked", "given", "held", "kept", "known", "said", "told"}
FAIR_NAMES: dict[tuple[str, str], str] = {  # (file, name): why it is the right name there
    ("src/dragoman/agent/hooks/guards/secrets.py", "known"): "an option of the hook secret_scan",
}

# What a native reader stops at, and what to write instead. "There is no …" is plain English.
PHRASES = {
    re.compile(r"(?<![Tt]here )\b(?:is|are) no (?!longer\b|more\b|less\b|need\b|other\b)\w"): "'is not a …'",
    re.compile(r"\bno word for\b"): "'does not support …'",
    re.compile(r"\bno more than\b.*\bis told\b|\bgood no more\b"): "'no longer valid'",
    re.compile(r"\bis (?:told|asked) anew\b|\bask(?:s|ed)? anew\b"): "'retried'",
    re.compile(r"\bbroke off\b|\bbreaks off\b"): "'closed the stream early'",
}


def check(root: Path) -> Iterator[Finding]:
    yield from check_classes(root)
    for folder in FOLDERS:
        for module in modules(root, folder):
            yield from check_names(module)
            yield from check_texts(module)
    for pattern in PAGES:
        for page in sorted(root.glob(pattern)):
            yield from check_page(root, page)


def check_classes(root: Path) -> Iterator[Finding]:
    """No two classes of the package share a name, private ones included."""
    places: dict[str, list[tuple[Module, int]]] = defaultdict(list)
    for module in modules(root, "src"):
        for node in module.nodes:
            if isinstance(node, ast.ClassDef):
                places[node.name].append((module, node.lineno))
    for name, uses in places.items():
        for module, line in uses[1:]:
            yield module.find(line, f"class {name} is also in {uses[0][0].label}; names are unique")


def check_names(module: Module) -> Iterator[Finding]:
    for name, line in bindings(module.nodes):
        if name.strip("_") in VAGUE_NAMES and (module.label, name) not in FAIR_NAMES:
            yield module.find(line, f"{name!r} says how the value came here: name what it holds")


def bindings(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, int]]:
    """Every name that the module gives to something, with its line."""
    for node in nodes:
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name, node.lineno
            case ast.arg(arg=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name, node.lineno
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield name, node.lineno
            case _:
                pass


def check_texts(module: Module) -> Iterator[Finding]:
    """Strings and comments; only files with a phrase anywhere are cut into tokens."""
    if not any(pattern.search(module.text) for pattern in PHRASES):
        return
    for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
        if token.type in (tokenize.STRING, tokenize.COMMENT):
            yield from (module.find(line, rule) for line, rule in phrases(token.string, token.start[0]))


def check_page(root: Path, page: Path) -> Iterator[Finding]:
    for line, rule in phrases(page.read_text(encoding="utf-8"), 1):
        yield Finding(page.relative_to(root).as_posix(), line, rule)


def phrases(text: str, first: int) -> Iterator[tuple[int, str]]:
    """The lines of a text that hold a phrase of `PHRASES`, counted from `first`."""
    for number, line in enumerate(text.splitlines(), start=first):
        for pattern, instead in PHRASES.items():
            if match := pattern.search(line):
                yield number, f"{match[0]!r}: write {instead}"
