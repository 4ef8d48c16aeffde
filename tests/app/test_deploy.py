"""What `fedstride deploy` writes: everything that its page promises, and nothing that others may read."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import ssl
import stat
import subprocess
import sys
import threading
import tomllib
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

pytest.importorskip("flwr")

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from fedstride.app import deploy
from fedstride.app.cli.deploy import app
from fedstride.app.deploy.superlink import NodesOnly
from fedstride.core.errors import InvalidInput

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower-app"
NODE = ("ca.crt", "compose.yaml", "key", "start.sh")
HOSTS = ["fl.example.org", "192.0.2.7", "2001:db8::7"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("deploy") / "ours"
    before = os.umask(0)  # the modes are the deployment's own
    try:
        deploy.init(place, 3, HOSTS, 9092)
    finally:
        os.umask(before)
    return place


def files(place: Path) -> dict[str, bytes]:
    found = (p for p in place.rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    return {str(p.relative_to(place)): p.read_bytes() for p in found}


def certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def handshake(server: Path, trusted: Path, host: str) -> None:
    """A client that asks for `host` meets the server's certificate, over a loopback socket."""
    ours, theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context(cafile=trusted)
    ours.load_cert_chain(server / "server.crt", server / "server.key")
    theirs.verify_flags |= ssl.VERIFY_X509_STRICT
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                try:
                    ours.wrap_socket(connection, server_side=True).close()
                except (ssl.SSLError, ConnectionError):
                    return  # the client refused

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            with socket.create_connection(listening.getsockname()) as plain:
                theirs.wrap_socket(plain, server_hostname=host).close()
        finally:
            thread.join()


def test_it_writes_a_folder_for_the_server_and_one_for_each_node(folder):
    found = {name for name in files(folder) if not name.startswith("server/app/")}
    server = {"ca.crt", "deployment.json", "server.crt", "server.key", "start.sh", "env.sh", "superlink.py"}
    server |= {"compose.yaml", "superlink.service"}
    assert found == {
        *("README.md", "deployment.json", "authority/ca.key", "authority/ca.crt"),
        *(f"server/{name}" for name in server),
        *(f"server/keys/node-{i}.pub" for i in range(3)),
        *(f"nodes/node-{i}/{name}" for i in range(3) for name in (*NODE, f"node-{i}.service")),
    }


def test_what_is_private_can_be_read_by_its_owner_only(folder):
    for path in folder.rglob("*"):
        others = stat.S_IMODE(path.stat().st_mode) & 0o077
        if path.is_dir() and "app" not in path.parts:
            assert others == 0, path
        if path.suffix == ".key" or path.name == "key":
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
        elif b"PRIVATE KEY" in (path.read_bytes() if path.is_file() else b""):
            pytest.fail(f"{path} holds a private key")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("host", [*HOSTS, "localhost", "127.0.0.1", "::1"])
def test_the_certificate_is_good_for_every_host_and_for_the_server_itself(folder, host):
    handshake(folder / "server", folder / "nodes" / "node-0" / "ca.crt", host)


def test_the_certificate_is_good_for_no_other_host(folder):
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(folder / "server", folder / "server" / "ca.crt", "other.example.org")


def test_another_authority_is_not_trusted(folder, tmp_path):
    deploy.init(tmp_path / "other", 1, HOSTS, 9092)
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate verify failed"):
        handshake(folder / "server", tmp_path / "other" / "server" / "ca.crt", HOSTS[0])


def test_each_node_has_a_key_of_its_own_and_the_server_its_public_half(folder):
    publics = set()
    for number in range(3):
        private = load_ssh_private_key((folder / "nodes" / f"node-{number}" / "key").read_bytes(), None)
        public = load_ssh_public_key((folder / "server" / "keys" / f"node-{number}.pub").read_bytes())
        assert isinstance(private, EllipticCurvePrivateKey)
        assert private.curve.name == "secp384r1"
        assert private.public_key() == public
        publics.add((folder / "server" / "keys" / f"node-{number}.pub").read_bytes())
    assert len(publics) == 3


def test_the_app_is_the_example_with_the_number_of_nodes(folder):
    written, example = files(folder / "server" / "app"), files(EXAMPLE)
    settings = tomllib.loads(written.pop("pyproject.toml").decode())
    expected = tomllib.loads(example.pop("pyproject.toml").decode())
    expected["tool"]["flwr"]["app"]["config"]["clients"] = 3
    assert (written, settings) == (example, expected)


@pytest.mark.slow
def test_flower_builds_the_app(folder, tmp_path):
    flwr = Path(sys.executable).parent / "flwr"
    env = os.environ | {"FLWR_HOME": str(tmp_path / "home"), "FLWR_TELEMETRY_ENABLED": "0"}
    command = [flwr, "build", "--app", folder / "server" / "app"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    assert len([*tmp_path.glob("hospital.hospital.*.fab")]) == 1, done.stdout + done.stderr


def test_texts_are_filled_and_scripts_are_shell(folder):
    for path in (folder / "README.md", *(p for end in ("sh", "service", "yaml") for p in folder.rglob(f"*.{end}"))):
        assert not re.search("@[A-Z]+@", path.read_text()), path
    for path in folder.rglob("*.sh"):
        subprocess.run(["sh", "-n", path], check=True)
    assert "--superlink fl.example.org:9092 " in (folder / "nodes" / "node-1" / "start.sh").read_text()
    assert '"client=1 $*"' in (folder / "nodes" / "node-1" / "start.sh").read_text()


@pytest.mark.parametrize(
    ("host", "listen"),
    [("fl.example.org", "0.0.0.0"), ("127.0.0.1", "127.0.0.1"), ("2001:db8::7", "::"), ("::1", "::1")],
)
def test_the_server_listens_where_its_first_host_is(tmp_path, host, listen):
    deploy.init(tmp_path / "new", 1, [host], 9092)
    assert f"--host {listen} --port 9092" in (tmp_path / "new" / "server" / "start.sh").read_text()


def test_a_folder_that_is_not_empty_is_left_alone(folder):
    before = files(folder)
    with pytest.raises(InvalidInput, match="is not empty"):
        deploy.init(folder, 3, HOSTS, 9092)
    assert files(folder) == before


@pytest.mark.parametrize(
    ("nodes", "hosts", "port", "named"),
    [
        (0, HOSTS, 9092, "nodes=0"),
        (-1, HOSTS, 9092, "nodes=-1"),
        (3, HOSTS, 0, "port=0"),
        (3, HOSTS, 65536, "port=65536"),
        (3, [], 9092, r"hosts=\[\]"),
        *((3, ["fl.example.org", bad], 9092, "host=") for bad in ("", " ", "a b", "-a.org", "a..org", "*.org", "a_b")),
        *(
            (3, [bad], 9092, "host=")
            for bad in ("fl.example.org:9092", "https://a.org", "300.1.1.1", "a" * 64, "$(id)")
        ),
    ],
)
def test_what_cannot_be_deployed_is_refused_before_anything_is_written(tmp_path, nodes, hosts, port, named):
    with pytest.raises(InvalidInput, match=named):
        deploy.init(tmp_path / "new", nodes, hosts, port)
    assert not (tmp_path / "new").exists()


def test_a_new_key_for_a_node_changes_that_node_only(tmp_path):
    deploy.init(tmp_path / "new", 2, HOSTS, 9092)
    before = files(tmp_path / "new")
    deploy.node(tmp_path / "new", 1)
    deploy.node(tmp_path / "new", 2)
    after = files(tmp_path / "new")
    changed = {name for name in after if after[name] != before.get(name)}
    added = {"server/keys/node-2.pub", *(f"nodes/node-2/{name}" for name in (*NODE, "node-2.service"))}
    assert changed == {"nodes/node-1/key", "server/keys/node-1.pub"} | added


def test_a_renewed_certificate_is_trusted_by_nodes_that_have_the_old_authority(tmp_path):
    deploy.init(tmp_path / "new", 1, HOSTS, 9092)
    server, ca = tmp_path / "new" / "server", tmp_path / "new" / "nodes" / "node-0" / "ca.crt"
    old = certificate(server / "server.crt")
    (tmp_path / "new" / "deployment.json").write_text(json.dumps({"hosts": ["moved.example.org"], "port": 9092}))
    until = deploy.renew(tmp_path / "new")
    assert certificate(server / "server.crt").serial_number != old.serial_number
    assert timedelta(days=364) < until - datetime.now(UTC) < timedelta(days=366)
    handshake(server, ca, "moved.example.org")


def test_there_is_nothing_to_renew_where_nothing_was_written(tmp_path):
    with pytest.raises(InvalidInput, match="does not contain a deployment"):
        deploy.renew(tmp_path)


def test_the_command_line_writes_the_same(tmp_path):
    place = tmp_path / "new"
    call = ["init", str(place), "--nodes", "2", "--host", "fl.example.org,192.0.2.7", "--port", "9000"]
    assert f"next steps: {place}/README.md" in CliRunner().invoke(app, call).stdout
    assert json.loads((place / "deployment.json").read_text()) == {
        "hosts": ["fl.example.org", "192.0.2.7"],
        "port": 9000,
    }
    again = CliRunner().invoke(app, call)
    assert again.exit_code == 2
    assert "is not empty" in again.stderr
    assert "valid until" in CliRunner().invoke(app, ["renew", str(place)]).stdout


@pytest.mark.slow
def test_without_flower_the_error_says_what_to_install(tmp_path):
    hidden = "import sys; sys.modules['cryptography'] = None; from fedstride.app.cli.deploy import app; app()"
    command = [sys.executable, "-c", hidden, "init", str(tmp_path / "new"), "--nodes", "1", "--host", "a.org"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "pip install 'fedstride[flower]'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("path", "client", "passed"),
    [
        ("/v1/fleet/pull-messages", "192.0.2.9", True),
        ("/health", "192.0.2.9", True),
        ("/v1/control/start-run", "192.0.2.9", False),
        ("/v1/control/register-node", "2001:db8::9", False),
        ("/v1/runtime/pull-messages", "192.0.2.9", False),
        ("/docs", "192.0.2.9", False),
        ("/healthy", "192.0.2.9", False),
        ("/v1/control/start-run", "127.0.0.1", True),
        ("/v1/control/start-run", "::1", True),
        ("/v1/control/start-run", None, False),
    ],
)
def test_from_other_machines_the_server_takes_only_what_nodes_send(path, client, passed):
    seen, sent = [], []

    async def behind(scope, receive, send):
        seen.append(scope["path"])

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "path": path, "client": client and (client, 1234)}
    asyncio.run(NodesOnly(behind)(scope, None, send))
    assert seen == ([path] if passed else [])
    assert [message["status"] for message in sent if "status" in message] == ([] if passed else [403])
