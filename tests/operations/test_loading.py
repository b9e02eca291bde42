"""Loading operations from files and modules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dragoman.errors import ConfigError
from dragoman.identity import LOCAL
from dragoman.operations import Calls, Context, Registry
from dragoman.operations.ledger import MemoryLedger
from dragoman.operations.loader import load_operations

EXAMPLES = Path(__file__).parents[2] / "examples"
SOURCE = '''
from dragoman.operations import Registry, operation

@operation("shop", effect="read")
def price(item: str) -> float:
    """What an item costs."""
    return 1.0

@operation("shop")
def order(item: str) -> bool:
    """Order an item."""
    return True

all_of_it = Registry(price, order)
some = [price]
'''


def write(folder: Path, source: str, name: str = "shop.py") -> str:
    (folder / name).write_text(source)
    return str(folder / name)


def ids(reference: str) -> list[str]:
    return [each.id for each in load_operations(reference)]


@pytest.mark.parametrize(
    ("part", "found"),
    [
        ("", ["shop.price", "shop.order"]),
        (":order", ["shop.order"]),
        (":some", ["shop.price"]),
        (":all_of_it", ["shop.order", "shop.price"]),
    ],
)
def test_a_file_gives_its_operations_or_those_of_one_name(
    tmp_path: Path, part: str, found: list[str]
) -> None:
    assert ids(write(tmp_path, SOURCE) + part) == found


def test_an_importable_module_gives_its_operations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, SOURCE, "some_shop_module.py")
    monkeypatch.syspath_prepend(tmp_path)
    assert ids("some_shop_module") == ["shop.price", "shop.order"]
    assert ids("some_shop_module:price") == ["shop.price"]


def test_operations_that_a_module_only_imports_are_not_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, SOURCE, "imported_shop_module.py")
    monkeypatch.syspath_prepend(tmp_path)
    source = "from imported_shop_module import order, price\n"
    assert ids(write(tmp_path, source + '__all__ = ["order"]')) == ["shop.order"]
    with pytest.raises(ConfigError, match="has no operations"):
        load_operations(write(tmp_path, source, "without.py"))


@pytest.mark.parametrize(
    ("source", "expected_message"),
    [
        (
            "x = 1",
            "has no operations; decorate a function with @operation(namespace).",
        ),
        ("1 / 0", "shop.py cannot be loaded: ZeroDivisionError: division by zero"),
        ("def (", "shop.py cannot be loaded: SyntaxError"),
        ("import nowhere_at_all", "shop.py cannot be loaded: ModuleNotFoundError"),
        (
            'from dragoman.operations import operation\n@operation("a")\ndef f(x): ...',
            "shop.py: f: parameter 'x' has no type hint",
        ),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_the_reason(
    tmp_path: Path, source: str, expected_message: str
) -> None:
    with pytest.raises(ConfigError) as error:
        load_operations(write(tmp_path, source))
    assert expected_message in str(error.value)


@pytest.mark.parametrize(
    ("reference", "expected_message"),
    [
        ("nowhere/at_all.py", "There is no file 'nowhere/at_all.py'"),
        ("nowhere_at_all", "There is no module 'nowhere_at_all'; to load a file, give its path"),
        ("json:nothing", "json has no 'nothing'"),
        ("json:loads", "loads has no operations"),
    ],
)
def test_a_reference_that_leads_nowhere_says_so(reference: str, expected_message: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_operations(reference)
    assert expected_message in str(error.value)


CALLS: list[tuple[str, dict[str, Any], Any]] = [
    ("units.convert", {"value": 212, "unit": "F", "to": "C"}, {"value": 100.0, "unit": "C"}),
    ("units.convert", {"value": 1, "unit": "mi", "to": "km"}, {"value": 1.609344, "unit": "km"}),
    ("texts.frequent", {"text": "to be or not to be", "count": 2}, {"to": 2, "be": 2}),
    ("notes.add", {"text": "water the plants"}, {"id": 1, "owner": "local", "text": "water the plants"}),
    ("notes.summary", {}, {"id": 2, "owner": "local", "text": "1 notes until here"}),
    ("notes.find", {"words": "WATER"}, [{"id": 1, "owner": "local", "text": "water the plants"}]),
    ("notes.remove", {"id": 1}, True),
    ("notes.remove", {"id": 1}, False),
]


async def test_the_examples_do_what_they_say() -> None:
    registry = Registry()
    for path in sorted(EXAMPLES.glob("*.py")):
        for operation in load_operations(path):
            assert operation.description, operation.id
            registry.add(operation)
    async with Calls(registry, MemoryLedger()) as calls:
        for name, input, result in CALLS:
            outcome = await calls.call(name, input, context=Context())
            if outcome.approval_id is not None:
                await calls.answer_approval(outcome.approval_id, approved=True, by=LOCAL)
                outcome = await calls.call(name, input, context=Context(approval=outcome.approval_id))
            assert outcome.to_json() == {"success": True, "result": result}
