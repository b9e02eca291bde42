"""The child process of a local model: llama.cpp's server, on a free port of the loopback.

Run as `python -m dragoman.providers.local.llama_server --model FILE --context TOKENS --threads NUMBER`. It
reads the key that requests must bring from the first line of its standard input, writes `{"address":
"http://…"}` as the only line of its standard output when it is ready, and ends when its input does: with
its parent.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

BATCH_TOKENS = 256  # tokens of a prompt that are evaluated before it is seen that the client has gone
CACHE_MIB = 256  # MiB for prompts that may come again
PING_SECONDS = 1  # seconds; nothing but a write shows the server that the client has gone
LOG_ERRORS = 1  # the least that is logged


def main() -> None:
    """Serve until standard input ends."""
    parser = argparse.ArgumentParser(prog="python -m dragoman.providers.local.llama_server")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--context", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    arguments = parser.parse_args()
    with os.fdopen(os.dup(sys.stdout.fileno()), "w") as parent:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever else is printed is no address
        key = sys.stdin.readline().strip()
        server = serve(arguments.model, key, context=arguments.context, threads=arguments.threads)
        parent.write(json.dumps({"address": server.listening_address}) + "\n")
    sys.stdin.read()


def serve(model: Path, key: str, *, context: int, threads: int) -> Any:
    """The server, ready for requests; it serves in threads of its own."""
    import xllamacpp  # late: a wheel of its own, `dragoman local install`

    params = xllamacpp.CommonParams()
    params.model.path = str(model)
    params.model_alias = {model.stem}
    params.n_ctx = context
    params.n_batch = params.n_ubatch = BATCH_TOKENS
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.cache_ram_mib = CACHE_MIB
    params.port = 0
    params.sse_ping_interval = PING_SECONDS
    params.api_keys = [key]
    params.verbosity = LOG_ERRORS
    try:
        return xllamacpp.Server(params)
    except RuntimeError as error:
        sys.exit(f"{model.name!r} cannot be used: {error}")


if __name__ == "__main__":
    main()
