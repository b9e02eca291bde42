"""Readers: public tool-retrieval sets as their repositories have them, read from a checkout as pools."""

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.search_data.pool import Pool, Tool, gather, made, properties

SEAL = "Seal-Tools_Dataset"
LEADERBOARD = "berkeley-function-call-leaderboard/bfcl_eval/data"
BFCL = {
    "bfcl-live": ("live_simple", "live_multiple", "live_parallel", "live_parallel_multiple"),
    "bfcl-synthetic": ("simple_python", "multiple", "parallel", "parallel_multiple"),
}
TOOLBENCH = {
    "toolbench-g1": ("G1_category", "G1_instruction", "G1_tool"),
    "toolbench-g2": ("G2_category", "G2_instruction"),
    "toolbench-g3": ("G3_instruction",),
}


def seal_tools(root: Path) -> Iterator[Pool]:
    """fairyshine/Seal-Tools (Apache-2.0): 4,076 generated tools, queries that need one or several."""
    tools = [
        (
            each["api_name"],
            Tool(
                name=each["api_name"],
                description=each["api_description"],
                schema=properties({name: _describe(rules) for name, rules in each["parameters"].items()}),
            ),
        )
        for each in _lines(root / SEAL / "tool.jsonl")
    ]
    for part in ("in_domain", "out_domain"):
        requests = _lines(root / SEAL / f"test_{part}.jsonl")
        queries = ((each["query"], {call["api"] for call in each["calling"]}) for each in requests)
        yield gather(f"seal-{part}", tools, queries)


def livemcpbench(root: Path) -> Iterator[Pool]:
    """icip-cas/LiveMCPBench (Apache-2.0): 70 real MCP servers, tasks that need several tools."""
    servers = json.loads((root / "tools/LiveMCPTool/tools.json").read_text())
    tools = [
        (each["name"], made(each, namespace))
        for server in servers
        for namespace, one in server["tools"].items()
        for each in one["tools"]
    ]
    tool_keys = {key for key, _ in tools}
    tasks = json.loads((root / "annotated_data/all_annotations.json").read_text())
    queries = []
    for task in tasks:
        named = re.findall(r"^\s*\d+\.\s*([\w-]+)", task["Annotator Metadata"]["Tools"], re.MULTILINE)
        queries.append((task["Question"], {name for name in named if name in tool_keys}))
    yield gather("livemcp-tasks", tools, queries)


def metatool(root: Path) -> Iterator[Pool]:
    """HowieHwong/MetaTool (MIT): 199 plugins without parameters, questions as people ask them."""
    reply = json.loads((root / "dataset/plugin_des.json").read_text())
    tools = [(name, Tool(name=name, description=text, schema={})) for name, text in reply.items()]
    with (root / "dataset/data/all_clean_data.csv").open() as file:
        rows = [(row["Query"], (row["Tool"],)) for row in csv.DictReader(file)]
    yield gather("metatool", tools, rows)
    several = json.loads((root / "dataset/data/multi_tool_query_golden.json").read_text())
    yield gather("metatool-multi", tools, ((each["query"], set(each["tool"])) for each in several))


def gorilla(root: Path) -> Iterator[Pool]:
    """ShishirPatil/gorilla, BFCL v4 (Apache-2.0): function calls, the functions of all tasks in one pool."""
    for name, parts in BFCL.items():
        tools: dict[str, Tool] = {}
        queries: list[tuple[str, Iterable[str]]] = []
        for part in parts:
            path = root / LEADERBOARD / f"BFCL_v4_{part}.json"
            answers = {
                each["id"]: {called for call in each["ground_truth"] for called in call}
                for each in _lines(path.parent / "possible_answer" / path.name)
            }
            for task in _lines(path):
                tools.update((each["name"], _function(each)) for each in task["function"])
                queries.append((_user_words(task["question"]), answers.get(task["id"], ())))
        yield gather(name, tools.items(), queries)


def stable_tool_bench(root: Path) -> Iterator[Pool]:
    """THUNLP-MT/StableToolBench (Apache-2.0): web APIs; all that its tasks name in one pool."""
    tools: dict[str, Tool] = {}
    request: dict[str, list[tuple[str, Iterable[str]]]] = {}
    for name, parts in TOOLBENCH.items():
        for part in parts:
            path = root / "solvable_queries/test_instruction" / f"{part}.json"
            for task in json.loads(path.read_text()):
                tools.update(
                    (_key(each["tool_name"], each["api_name"]), _api(each)) for each in task["api_list"]
                )
                wanted = {_key(*pair) for pair in task["relevant APIs"]}
                request.setdefault(name, []).append((task["query"], wanted))
    for name, queries in request.items():
        yield gather(name, tools.items(), queries)


def mcpproxy(root: Path) -> Iterator[Pool]:
    """smart-mcp-proxy/mcpproxy-go (MIT): 45 tools of reference servers, queries that avoid their words."""
    folder = root / "specs/065-evaluation-foundation/datasets"
    corpus = json.loads((folder / "corpus_v1.tools.json").read_text())["tools"]
    tools = [(each["tool_id"], made({**each, "name": each["tool"]}, each["server"])) for each in corpus]
    request = json.loads((folder / "retrieval_golden_v1.json").read_text())["queries"]
    best = [(max(label["relevance"] for label in each["labels"]), each) for each in request if each["labels"]]
    queries = (
        (each["query"], {label["tool_id"] for label in each["labels"] if label["relevance"] == most})
        for most, each in best
    )
    yield gather("mcpproxy", tools, queries)


READERS: Mapping[str, Callable[[Path], Iterator[Pool]]] = {
    "Seal-Tools": seal_tools,
    "LiveMCPBench": livemcpbench,
    "MetaTool": metatool,
    "gorilla": gorilla,
    "StableToolBench": stable_tool_bench,
    "mcpproxy-go": mcpproxy,
}


def read_checkouts(folder: Path) -> Iterator[Pool]:
    """The pools of the checkouts that lie in a folder, each under its repository's name."""
    for name, read in READERS.items():
        if (folder / name).is_dir():
            yield from read(folder / name)


def _lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def _describe(rules: Any) -> str:
    return str(rules.get("description") or "") if isinstance(rules, Mapping) else ""


def _function(fields: Mapping[str, Any]) -> Tool:
    described = fields["parameters"].get("properties") or {}
    return Tool(
        name=fields["name"],
        description=fields.get("description") or "",
        schema=properties({name: _describe(rules) for name, rules in described.items()}),
    )


def _api(fields: Mapping[str, Any]) -> Tool:
    parameters = [*fields["required_parameters"], *fields["optional_parameters"]]
    return Tool(
        name=fields["api_name"],
        description=fields.get("api_description") or "",
        schema=properties({each["name"]: each.get("description") or "" for each in parameters}),
        namespace=fields["tool_name"],
    )


def _key(tool: str, api: str) -> str:
    return f"{tool}/{api}"


def _user_words(turns: Any) -> str:
    replies = [each["content"] for turn in turns for each in turn if each["role"] == "user"]
    return "\n".join(replies)
