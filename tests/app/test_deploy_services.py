"""systemd units and compose files of a deployment: their keys are known, what they start is there, nothing is left open."""

from __future__ import annotations

import configparser
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("yaml")
pytest.importorskip("flwr")

import yaml

import fedstride as fs
from fedstride.app import deploy

UNIT = {
    "Unit": {"Description", "Wants", "After", "StartLimitIntervalSec"},
    "Service": {
        *("User", "WorkingDirectory", "Environment", "ExecStart", "Restart", "RestartSec", "RestartSteps"),
        *("RestartMaxDelaySec", "TimeoutStopSec", "UMask", "NoNewPrivileges", "PrivateTmp", "ProtectHome"),
        *("ProtectSystem", "ReadWritePaths"),
    },
    "Install": {"WantedBy"},
}
SERVICE = {  # of the compose specification
    *("build", "network_mode", "user", "working_dir", "volumes", "environment", "command", "init", "restart"),
    *("stop_grace_period", "cap_drop", "security_opt", "healthcheck"),
}
DURATION = re.compile(r"\d+s")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("services") / "ours"
    deploy.init(place, 2, ["fl.example.org"], 9092)
    return place


def units(folder: Path) -> list[Path]:
    found = sorted(folder.rglob("*.service"))
    assert [path.name for path in found] == ["node-0.service", "node-1.service", "superlink.service"]
    return found


def test_units_have_known_keys_and_start_what_is_there(folder):
    for path in units(folder):
        unit = configparser.ConfigParser(strict=True, interpolation=None)
        unit.optionxform = str
        unit.read_string(path.read_text())
        assert {name: set(unit[name]) for name in unit.sections()} == UNIT
        service = unit["Service"]
        command = shlex.split(service["ExecStart"])
        assert command[0] == f"{service['WorkingDirectory']}/start.sh" and (path.parent / "start.sh").is_file()
        assert service["ReadWritePaths"] == service["WorkingDirectory"]
        assert service["Restart"] == "always" and unit["Unit"]["StartLimitIntervalSec"] == "0"
        assert (service["UMask"], service["ProtectSystem"]) == ("0077", "strict")
        assert float(service["RestartSec"]) < float(service["RestartMaxDelaySec"])


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd on this machine")
def test_systemd_accepts_the_units(folder):
    """Only the program, which is on another machine, and the backoff, new in systemd 254, may be unknown."""
    for path in units(folder):
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", str(path)], capture_output=True, text=True, timeout=60
        )
        if "start.sh is not executable" not in done.stderr:
            pytest.skip(f"systemd-analyze does not work here: {done.stderr}")
        said = [line for line in done.stderr.splitlines() if path.name in line]
        assert not [line for line in said if not re.search("RestartSteps|RestartMaxDelaySec|start.sh is not", line)]


def composed(path: Path) -> tuple[str, dict]:
    found = yaml.safe_load(path.read_text())
    assert set(found) == {"services"}
    ((name, service),) = found["services"].items()
    assert set(service) <= SERVICE
    return name, service


def test_compose_files(folder):
    for path in (folder / "server", folder / "nodes" / "node-0", folder / "nodes" / "node-1"):
        name, service = composed(path / "compose.yaml")
        assert name == ("superlink" if path.name == "server" else path.name)
        assert service["build"].keys() == {"context", "dockerfile_inline"}
        head, install = service["build"]["dockerfile_inline"].splitlines()
        assert head.startswith("FROM python:3.") and f"'fedstride[flower]=={fs.__version__}'" in install
        assert service["command"][0] == "./start.sh" and (path / "start.sh").is_file()
        assert service["cap_drop"] == ["ALL"] and service["security_opt"] == ["no-new-privileges:true"]
        assert service["network_mode"] == "host" and "privileged" not in service
        assert DURATION.fullmatch(service["stop_grace_period"])
        inside = service["volumes"][0].split(":")[1]
        assert service["working_dir"] == inside
        assert all(isinstance(value, str) for value in service["environment"].values())


def test_the_health_check_of_the_compose_file_is_a_program(folder):
    _, service = composed(folder / "server" / "compose.yaml")
    check = service["healthcheck"]
    assert set(check) == {"test", "interval", "timeout", "retries", "start_period"}
    kind, python, flag, program = check["test"]
    assert (kind, python, flag) == ("CMD", "python", "-c")
    compile(program, "healthcheck", "exec")
    assert "https://127.0.0.1:9092/health" in program and "cafile='ca.crt'" in program


def test_the_data_of_a_node_is_read_only(folder):
    _, service = composed(folder / "nodes" / "node-0" / "compose.yaml")
    assert service["volumes"][1].endswith(":/data:ro")
    assert service["command"][1] == 'data="/data/patients.csv"'
