"""The child process of a local model: llama.cpp's server on a free loopback port.

Run as `python -m dragoman.providers.local.llama_server --model FILE --context TOKENS --threads NUMBER`. It
reads the API key that requests must send from the first line of its input, writes `{"address": "http://…"}`
as the only line of its output when it is ready, or `{"problem": "…"}` when it cannot be, and exits at the end
of its input, which is when its parent ends.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

BATCH_TOKENS = 256  # prompt tokens evaluated between checks whether the client has disconnected
CACHE_MIB = 256  # for the prompt cache
PING_SECONDS = 1  # the server detects a disconnect only when it writes
LOG_ERRORS = 1  # llama.cpp's log level for errors only


def main() -> None:
    """Serve until standard input ends."""
    parser = argparse.ArgumentParser(prog="python -m dragoman.providers.local.llama_server")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--context", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    arguments = parser.parse_args()
    with os.fdopen(os.dup(sys.stdout.fileno()), "w") as parent:
        # llama.cpp prints to stdout, which is for the address.
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        key = sys.stdin.readline().strip()
        try:
            server = serve(arguments.model, key, context=arguments.context, threads=arguments.threads)
        except RuntimeError as error:  # not to stderr: llama.cpp's threads write there, too
            problem = f"{arguments.model.name!r} cannot be loaded: {error}"
            parent.write(json.dumps({"problem": problem}) + "\n")
            sys.exit(1)
        parent.write(json.dumps({"address": server.listening_address}) + "\n")
    sys.stdin.read()


def serve(model: Path, key: str, *, context: int, threads: int) -> Any:
    """Start the server, which runs in its own threads, and return it when it is ready.

    Raises RuntimeError if the model cannot be loaded.
    """
    import xllamacpp  # late: optional, installed by `dragoman local install`

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
    return xllamacpp.Server(params)


if __name__ == "__main__":
    main()
