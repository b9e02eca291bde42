"""The peers' own installations, each from its lock file, and how large they are."""

import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from email import message_from_string
from json import loads
from pathlib import Path

from benchmarks.harness.build import HERE, Absent, install, is_newer

PEERS = HERE / "peers"
LITELLM, PORTKEY, NGINX = PEERS / "litellm", PEERS / "portkey", PEERS / "nginx"
DEBS = ("nginx", "nginx-common")
MEGABYTE = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Size:
    """What an installation takes, without the interpreter and without compiled bytecode."""

    megabytes: float
    packages: int


def install_litellm() -> None:
    """Install LiteLLM's proxy into an environment of its own; `Absent` when that cannot be done."""
    lock, done = LITELLM / "requirements.txt", LITELLM / ".venv" / "installed"
    if is_newer(done, [lock]):
        return
    install([sys.executable, "-m", "venv", "--clear", str(LITELLM / ".venv")], cwd=LITELLM)
    pip = [str(LITELLM / ".venv" / "bin" / "python"), "-m", "pip", "install", "-q"]
    install([*pip, "--require-hashes", "--only-binary", "litellm", "-r", str(lock)], cwd=LITELLM)
    done.touch()


def install_portkey() -> None:
    """Install the Node gateway from its lock file; `Absent` when that cannot be done."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        raise Absent("needs node and npm")
    if not is_newer(PORTKEY / "node_modules" / ".package-lock.json", [PORTKEY / "package-lock.json"]):
        install(["npm", "ci", "--ignore-scripts"], cwd=PORTKEY)


def install_nginx() -> None:
    """Unpack Debian's nginx beside us, without root and without starting a service, if there is none."""
    if shutil.which("nginx") or (NGINX / ".debian" / "usr" / "sbin" / "nginx").exists():
        return
    if shutil.which("apt-get") is None:
        raise Absent("needs nginx in the PATH, or apt-get to get it with")
    folder = NGINX / ".debian"
    folder.mkdir(parents=True, exist_ok=True)
    install(["apt-get", "download", "--quiet=2", *DEBS], cwd=folder)
    for deb in sorted(folder.glob("*.deb")):
        install(["dpkg-deb", "--extract", str(deb), str(folder)], cwd=folder)
        deb.unlink()


def nginx_program() -> Path:
    """The nginx to start."""
    ours = NGINX / ".debian" / "usr" / "sbin" / "nginx"
    return ours if ours.exists() else Path(shutil.which("nginx") or "nginx")


def version_of(peer: str) -> str:
    """The version of a peer's main package, as its lock file has it."""
    if peer == "litellm":
        return (LITELLM / "requirements.txt").read_text().split("\nlitellm==", 1)[1].split(" ", 1)[0]
    package = loads((PORTKEY / "package.json").read_text())
    return str(package["dependencies"]["@portkey-ai/gateway"])


def litellm_size() -> Size:
    """LiteLLM's proxy with all that its lock file names."""
    [packages] = (LITELLM / ".venv" / "lib").glob("python*/site-packages")
    return _python(packages, names=_locked(LITELLM / "requirements.txt"))


def dragoman_size() -> Size:
    """The wheel with all that its own lock file names."""
    [packages] = (HERE.parent / ".venv" / "lib").glob("python*/site-packages")
    return _python(packages, names=_locked(HERE.parent / "requirements" / "runtime.txt") | {"dragoman"})


def portkey_size() -> Size:
    """All of node_modules."""
    lock = loads((PORTKEY / "package-lock.json").read_text())
    return Size(megabytes=_tree(PORTKEY / "node_modules"), packages=len(lock["packages"]) - 1)


def nginx_size() -> Size:
    """Debian's two packages, without the libraries that every Debian has."""
    ours = NGINX / ".debian"
    if not ours.exists():
        raise Absent("nginx was here already")
    return Size(megabytes=_tree(ours), packages=len(DEBS))


def _python(packages: Path, *, names: set[str]) -> Size:
    sizes = [
        sum(file.stat().st_size for file in _files(record))
        for record in packages.glob("*.dist-info/RECORD")
        if _name(record.parent) in names
    ]
    return Size(megabytes=sum(sizes) / MEGABYTE, packages=len(sizes))


def _name(metadata: Path) -> str:
    distribution = message_from_string((metadata / "METADATA").read_text(errors="replace"))["Name"]
    return _plain(str(distribution))


def _files(record: Path) -> Iterator[Path]:
    for line in record.read_text().splitlines():
        file = record.parent.parent / line.rsplit(",", 2)[0].strip('"')
        if file.suffix != ".pyc" and file.exists():
            yield file


def _locked(lock: Path) -> set[str]:
    return {_plain(name) for name in re.findall(r"^([A-Za-z0-9._-]+)==", lock.read_text(), re.MULTILINE)}


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _tree(folder: Path) -> float:
    files = (file for file in folder.rglob("*") if file.is_file() and not file.is_symlink())
    return sum(file.stat().st_size for file in files) / MEGABYTE
