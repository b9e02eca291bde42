"""Postgres over the network: TLS, certificates and passwords, and what each command says of them."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cli.conftest import Run
from tests.cli.program import finish, scripted, serving
from tests.cli.program import run as run_program
from tests.cli.test_database_url import write_config
from tests.postgres_server import PostgresServer, unprivileged_user

PASSWORD, WRONG = "r1ght-pass", "wr0ng-pass"
EC = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@contextmanager
def server_without_tls() -> Iterator[int]:
    """A port where each request for TLS is answered as a server without it does: `N`."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                with client:
                    client.recv(8)
                    client.sendall(b"N")
                    client.recv(1)

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("sslmode=require", ("does not support SSL", "turn TLS on")),
        ("sslmode=verify", ("invalid sslmode value", "parameters of the URL")),
    ],
)
def test_what_waiting_does_not_cure_fails_the_check(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: str, words: tuple[str, str]
) -> None:
    write_config(tmp_path)
    with server_without_tls() as port:
        monkeypatch.setenv("DRAGOMAN_DATABASE", f"postgresql://ann:{PASSWORD}@127.0.0.1:{port}/hub?{more}")
        refused = run("check")
    assert (refused.code, all(text in refused.err for text in words)) == (1, True), refused.err
    assert PASSWORD not in refused.out + refused.err


def test_a_hub_whose_database_is_down_starts_and_waits_for_it(tmp_path: Path) -> None:
    providers = {"sim": scripted(tmp_path, "sim", [{"text": "Good day."}])}
    url = f"postgresql://ann:{PASSWORD}@127.0.0.1:1/hub"
    with serving(tmp_path, {"providers": providers, "model": "sim/x"}, DRAGOMAN_DATABASE=url) as hub:
        ended = finish(hub.process, signal.SIGTERM)
    assert (ended.code, "the database is down" in ended.err) == (0, True), ended.err
    assert PASSWORD not in ended.out + ended.err


class Site(NamedTuple):
    """A server with TLS, the port at which it listens, and the folder with the certificates."""

    server: PostgresServer
    port: int
    folder: Path

    def url(self, host: str = "localhost", *, password: str = PASSWORD, **params: str) -> str:
        query = "&".join(f"{name}={value}" for name, value in params.items())
        return f"postgresql://ann:{password}@{host}:{self.port}/hub?{query}"

    def bob(self, certificate: str = "", *, key: str = "") -> str:
        """Return the URL of a user who has a certificate instead of a password."""
        files = {
            "sslcert": f"{certificate}.pem",
            "sslkey": f"{key or certificate}.key",
            "sslrootcert": "ca.pem",
        }
        query = "&".join(f"{name}={self.folder / file}" for name, file in files.items() if file[0] != ".")
        return f"postgresql://bob@localhost:{self.port}/hub?sslmode=verify-full&{query}"


@pytest.fixture
def site() -> Iterator[Site]:
    """A server that takes passwords over TLS only, with a certificate for `localhost`."""
    folder = Path(tempfile.mkdtemp(prefix="dragoman-tls-"))
    folder.chmod(0o755)
    make_certificates(folder)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = PostgresServer(
        {
            "listen_addresses": "127.0.0.1",
            "port": str(port),
            "ssl": "on",
            "ssl_cert_file": str(folder / "server.pem"),
            "ssl_key_file": str(folder / "server.key"),
            "ssl_ca_file": str(folder / "ca.pem"),
            "password_encryption": "scram-sha-256",
        }
    )
    try:
        server.let_in("hostssl all all 127.0.0.1/32 scram-sha-256")
        server.execute(f"CREATE ROLE ann LOGIN PASSWORD '{PASSWORD}'")
        server.execute("CREATE DATABASE hub OWNER ann")
        yield Site(server, port, folder)
    finally:
        server.close()
        shutil.rmtree(folder)


def make_certificates(folder: Path) -> None:
    """Make a CA, a certificate of it for `localhost`, another CA, and certificates of users."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    for name in ("ca", "other"):
        files = ("-keyout", f"{name}.key", "-out", f"{name}.pem")
        openssl("req", "-x509", *EC, *files, "-subj", f"/CN={name}", "-days", "2")
    openssl("req", *EC, "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=db")
    (folder / "names").write_text("subjectAltName=DNS:localhost\n")
    signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names", "-days", "2")
    openssl("x509", "-req", "-in", "server.csr", "-out", "server.pem", *signed)
    users = ("ann", "ca", "2"), ("bob", "ca", "2"), ("stranger", "other", "2"), ("expired", "ca", "-1")
    for name, ca, days in users:
        subject = name if name == "ann" else "bob"
        openssl("req", *EC, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={subject}")
        signer = ("-CA", f"{ca}.pem", "-CAkey", f"{ca}.key", "-CAcreateserial", "-days", days)
        openssl("x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.pem", *signer)
        (folder / f"{name}.key").chmod(0o600)
    if (user := unprivileged_user()) is not None:
        shutil.chown(folder / "server.key", user)
    (folder / "server.key").chmod(0o600)


@pytest.mark.thorough  # a server of its own, and twenty processes
def test_certificates_and_passwords_are_checked_and_each_command_says_what_is_wrong(
    site: Site, tmp_path: Path
) -> None:
    config, ca = write_config(tmp_path), site.folder / "ca.pem"
    full = {"sslmode": "verify-full", "sslrootcert": str(ca)}
    site.server.let_in(
        "hostssl all bob 127.0.0.1/32 cert",
        "hostssl all all 127.0.0.1/32 scram-sha-256",
    )
    site.server.execute("CREATE ROLE bob LOGIN")
    wrong = {
        site.url("127.0.0.1", **full): ("does not match host name", "name the host in the URL"),
        site.url(sslmode="verify-full", sslrootcert=str(site.folder / "other.pem")): (
            "certificate verify failed",
            "sslrootcert=FILE",
        ),
        site.url(sslmode="verify-full", sslrootcert="/nowhere/ca.pem"): (
            '"/nowhere/ca.pem"',
            "sslrootcert=FILE",
        ),
        site.url(**full, password=WRONG): ("password authentication failed", "the user and the password"),
        site.url(**full).replace(f":{PASSWORD}@", "@"): ("no password supplied", "passfile"),
        site.url(sslmode="disable"): ("no encryption", "sslmode=verify-full"),
        site.bob(): ("requires a valid client certificate", "sslcert=FILE"),
        site.bob("bob", key="ann"): ("could not load private key", "sslkey"),
        site.bob("ann"): ("certificate authentication failed", "one of the URL's user"),
        site.bob("stranger"): ("unknown ca", "the server refuses the certificate"),
        site.bob("expired"): ("certificate expired", "the server refuses the certificate"),
    }
    shown = []
    for url, words in wrong.items():
        environment = {"DRAGOMAN_DATABASE": url, "HOME": str(tmp_path)}
        serve = ("serve", "--config", config, "--data", tmp_path / "data", "--port", "0")
        for command in (("check", "--config", config), ("database", "status"), serve):
            done = run_program(*command, env=environment, cwd=tmp_path)
            assert (done.code, all(text in done.err for text in words)) == (1, True), (command, done.err)
            shown += [done.out, done.err]
    done = run_program("database", "status", env={"DRAGOMAN_DATABASE": site.bob("bob")}, cwd=tmp_path)
    assert "does not hold the tables of a hub" in done.err  # so bob was let in
    environment = {"DRAGOMAN_DATABASE": site.url(**full)}
    for command, code, text in (
        (("check", "--config", config), 0, "none yet; the hub creates them"),
        (("database", "migrate"), 0, ""),
        (("database", "status"), 0, "postgresql://ann@localhost"),
    ):
        done = run_program(*command, env=environment, cwd=tmp_path)
        assert (done.code, text in done.out + done.err) == (code, True), (command, done.err)
        shown += [done.out, done.err]
    encrypted = site.server.execute("SELECT count(*) FROM pg_stat_ssl WHERE ssl")
    assert encrypted == [(0,)]  # no connection is left
    assert not [text for text in shown if PASSWORD in text or WRONG in text]
