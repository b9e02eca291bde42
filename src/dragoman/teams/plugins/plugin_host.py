"""The program that runs one plugin, inside of its sandbox.

Its input is lines of JSON: first the source, then `{"id": ..., "input": ...}` for each call. It prints a
line for each of them: `{"ready": true}`, then `{"id": ..., "result": ...}` or `{"id": ..., "error": ...}`.
What the plugin prints goes to the errors. The text of this program is handed to Python as an argument: it
imports nothing of the hub, and no file of the hub is there.
"""

import json
import os
import sys
from typing import Any, TextIO


def main() -> None:
    """Run the plugin for each line of input."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.setrecursionlimit(2_000)
    lines = iter(sys.stdin.readline, "")
    namespace: dict[str, Any] = {"__name__": "plugin"}
    exec(compile(json.loads(next(lines))["source"], "plugin", "exec"), namespace)  # noqa: S102 - in the sandbox
    answer(answers, {"ready": True})
    for line in lines:
        call = json.loads(line)
        try:
            answer(answers, {"id": call["id"], "result": namespace["run"](call["input"])})
        except Exception as error:  # noqa: BLE001 - the caller is told of it
            answer(answers, {"id": call["id"], "error": f"{type(error).__name__}: {error}"[:500]})


def answer(answers: TextIO, fields: dict[str, Any]) -> None:
    """Print a line of JSON."""
    answers.write(json.dumps(fields, allow_nan=False) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
