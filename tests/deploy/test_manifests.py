"""The systemd unit, the container, the compose file and the Kubernetes manifest that we ship.

Containers are not built here, and no cluster is asked: the tests hold the files to each other and to the hub.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from dragoman.config import read_config
from tests.cli.program import run
from tests.serving import serving

DEPLOY = Path(__file__).parents[2] / "deploy"
MAX_EXPOSURE = 3.0  # of 10, as `systemd-analyze security` counts
IMAGE_USER = 10001


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text(encoding="utf-8")))


def options_of_serve() -> set[str]:
    """What `dragoman serve` takes."""
    return set(re.findall(r"--[a-z-]+", run("serve", "--help").out))


def test_the_systemd_unit_is_valid_hardened_and_starts_the_hub_with_options_that_exist(
    tmp_path: Path,
) -> None:
    text = (DEPLOY / "dragoman.service").read_text(encoding="utf-8")
    command = shlex.split(next(line for line in text.splitlines() if line.startswith("ExecStart="))[10:])
    assert command[:2] == ["/opt/dragoman/bin/dragoman", "serve"]
    assert {word for word in command if word.startswith("--")} <= options_of_serve()
    unit = tmp_path / "dragoman.service"
    unit.write_text(text.replace("/opt/dragoman/bin/dragoman", "/bin/true"))
    checked = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")
    judged = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", unit], capture_output=True, text=True, check=False
    ).stdout
    exposure = re.search(r"exposure level for dragoman.service: ([\d.]+)", judged)
    assert exposure is not None, judged
    assert float(exposure[1]) <= MAX_EXPOSURE


def test_the_container_has_a_user_of_its_own_a_health_check_and_a_command_that_exists() -> None:
    lines = (DEPLOY / "Containerfile").read_text(encoding="utf-8").splitlines()
    stages = [line for line in lines if line.startswith("FROM ")]
    final = lines[lines.index(stages[-1]) :]
    assert len(stages) == 2
    assert f"USER {IMAGE_USER}" in final
    assert "/readyz" in next(line for line in final if "urlopen" in line)
    command = yaml.safe_load(next(line for line in final if line.startswith("CMD ["))[4:])
    assert command[0] == "serve"
    assert {word for word in command if word.startswith("--")} <= options_of_serve()
    assert not any("pip" in line for line in final)


def test_compose_keeps_the_root_read_only_and_the_address_on_loopback() -> None:
    [composed] = documents("compose.yaml")
    hub = composed["services"]["hub"]
    assert (hub["read_only"], hub["cap_drop"]) == (True, ["ALL"])
    assert all(port.startswith("127.0.0.1:") for port in hub["ports"])
    assert set(composed["volumes"]) == {"hub", "database"}
    assert (DEPLOY / hub["build"]["context"] / hub["build"]["dockerfile"]).exists()
    named = {volume.partition(":")[0] for volume in hub["volumes"]} - {"./dragoman.yaml"}
    assert named <= set(composed["volumes"])


async def test_the_kubernetes_manifest_fits_together_and_its_probes_are_the_hubs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {document["kind"]: document for document in documents("kubernetes.yaml")}
    assert set(found) == {
        "Namespace",
        "ConfigMap",
        "StatefulSet",
        "Service",
        "PodDisruptionBudget",
        "NetworkPolicy",
    }
    pod = found["StatefulSet"]["spec"]["template"]
    [hub] = pod["spec"]["containers"]
    labels = pod["metadata"]["labels"]
    assert found["StatefulSet"]["spec"]["selector"]["matchLabels"] == labels
    assert found["Service"]["spec"]["selector"] == labels
    assert found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    assert found["StatefulSet"]["spec"]["serviceName"] == found["Service"]["metadata"]["name"]
    assert (
        pod["spec"]["securityContext"]["runAsUser"],
        hub["securityContext"]["readOnlyRootFilesystem"],
    ) == (
        IMAGE_USER,
        True,
    )
    volumes = {volume["name"] for volume in pod["spec"]["volumes"]}
    volumes |= {claim["metadata"]["name"] for claim in found["StatefulSet"]["spec"]["volumeClaimTemplates"]}
    assert {mount["name"] for mount in hub["volumeMounts"]} == volumes

    monkeypatch.setenv("POD_IP", "127.0.0.1")
    for variable in hub["env"]:
        if "value" in variable:
            monkeypatch.setenv(variable["name"], variable["value"].replace("$(POD_IP)", os.environ["POD_IP"]))
    written = tmp_path / "dragoman.yaml"
    written.write_text(found["ConfigMap"]["data"]["dragoman.yaml"])
    config = read_config(written)
    assert config.hosts.url == "http://127.0.0.1:8001"

    for name in [name for name in os.environ if name.startswith("DRAGOMAN__")]:
        monkeypatch.delenv(name)
    async with serving(tmp_path / "hub") as served:
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            path = hub[probe]["httpGet"]["path"]
            assert (await served.http.get(path)).status_code == 200, path
    assert pod["spec"]["terminationGracePeriodSeconds"] > config.limits.drain
