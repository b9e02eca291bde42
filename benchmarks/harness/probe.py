"""Reads one answer whole before a server is measured: is it the answer that was asked for?"""

from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException

from benchmarks.harness.build import Absent
from benchmarks.harness.load import Trial
from benchmarks.harness.workloads import Ask


def probe(trial: Trial) -> None:
    """`Absent` says what is wrong with the answer: chunks, tool results, an error, the end."""
    for ask in trial.workload.asks(trial.server.dialect):
        try:
            status, text = _post(trial, ask.body.replace("%ID%", "probe"))
        except (OSError, HTTPException) as error:
            raise Absent(f"gave no answer: {error!r}") from error
        if status != 200:
            raise Absent(f"answered with status {status}: {text[:200]!r}")
        for fault in _faults(trial, ask, text):
            raise Absent(f"answered with {fault}")


def _faults(trial: Trial, ask: Ask, text: str) -> Iterator[str]:
    if '"type":"error"' in text or '"errorText"' in text:
        yield "an error in the stream"
    if text.count(" t@") != ask.chunks:
        yield f"{text.count(' t@')} chunks instead of {ask.chunks}"
    if not text.rstrip().endswith("data: [DONE]"):
        yield "no [DONE] at the end"
    results = text.count('"type":"tool-output-available"')
    if trial.server.dialect == "ui" and results != trial.workload.tool_steps:
        yield f"{results} tool results instead of {trial.workload.tool_steps}"


def _post(trial: Trial, body: str) -> tuple[int, str]:
    connection = HTTPConnection("127.0.0.1", trial.running.port, timeout=30)
    try:
        connection.request("POST", trial.path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()
