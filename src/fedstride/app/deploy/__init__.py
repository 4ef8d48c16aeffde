"""Deployment with Flower: write the app, TLS certificates, a key for every node, start scripts and a README."""

from __future__ import annotations

import datetime
import json
import re
import shutil
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import cast

import fedstride
from fedstride.core.errors import InvalidInput

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        PublicFormat,
        load_pem_private_key,
    )
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError as error:
    raise InvalidInput(f"deploying needs Flower ({error}): pip install 'fedstride[flower]'.") from error

FILES = Path(__file__).parent
HERE = ("localhost", "127.0.0.1", "::1")
YEAR = datetime.timedelta(days=365)
LABEL = r"(?!-)[a-z0-9-]{1,63}(?<!-)"
NAME = re.compile(rf"(?=.{{1,253}}$){LABEL}(\.{LABEL})*", re.IGNORECASE)


def init(folder: Path, nodes: int, hosts: Sequence[str], port: int) -> None:
    """Write the folder of a new deployment; `hosts` are the names or addresses at which nodes reach the server."""
    for host in hosts:
        _checked(host)
    if not hosts:
        raise InvalidInput("hosts=[] is invalid: expected the name or the address at which nodes reach the server.")
    if not 1 <= nodes <= 10_000:
        raise InvalidInput(f"nodes={nodes!r} is invalid: expected 1 to 10000.")
    if not 1 <= port <= 65535:
        raise InvalidInput(f"port={port!r} is invalid: expected 1 to 65535.")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InvalidInput(f"{folder} is not empty; expected an empty folder or one that does not exist.")
    server = folder / "server"
    for place in (folder, folder / "authority", server, server / "keys", folder / "nodes"):
        place.mkdir(mode=0o700, parents=place == folder, exist_ok=place == folder)
    folder.chmod(0o700)
    (folder / "deployment.json").write_text(json.dumps({"hosts": list(hosts), "port": port}) + "\n")
    _authority(folder / "authority")
    shutil.copy(folder / "authority" / "ca.crt", server)
    shutil.copy(folder / "deployment.json", server)
    renew(folder)
    shutil.copytree(FILES / "flower-app", server / "app", ignore=shutil.ignore_patterns("__pycache__"))
    settings = server / "app" / "pyproject.toml"
    settings.write_text(re.sub(r"(?m)^clients = \d+", f"clients = {nodes}", settings.read_text()))
    shutil.copy(FILES / "superlink.py", server)
    known = {**_known(folder), "NODES": str(nodes), "LAST": str(nodes - 1)}
    _write(server / "env.sh", _filled("env.sh", known))
    _write(server / "start.sh", _filled("server.sh", known), 0o700)
    _write(server / "superlink.service", _filled("superlink.service", known))
    _write(server / "compose.yaml", _filled("superlink.yaml", known))
    _write(folder / "README.md", _filled("page.md", known))
    for number in range(nodes):
        node(folder, number)


def node(folder: Path, number: int) -> Path:
    """Write the folder of a node with a new key, for a new node or after a key was lost."""
    known = _known(folder)
    if number < 0:
        raise InvalidInput(f"node {number!r} is invalid: expected a number from 0.")
    key, place = ec.generate_private_key(ec.SECP384R1()), folder / "nodes" / f"node-{number}"
    place.mkdir(mode=0o700, exist_ok=True)
    _write(place / "key", key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()), 0o600)
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    _write(folder / "server" / "keys" / f"node-{number}.pub", public + f" node-{number}\n".encode())
    shutil.copy(folder / "authority" / "ca.crt", place)
    own = {**known, "NUMBER": str(number)}
    _write(place / "start.sh", _filled("node.sh", own), 0o700)
    _write(place / f"node-{number}.service", _filled("node.service", own))
    _write(place / "compose.yaml", _filled("node.yaml", own))
    return place


def renew(folder: Path) -> datetime.datetime:
    """Write a new key and certificate for the server and the hosts in deployment.json; return when it expires."""
    hosts = _known(folder)["HOSTS"].split(",")
    authority = folder / "authority"
    key = cast(ec.EllipticCurvePrivateKey, load_pem_private_key((authority / "ca.key").read_bytes(), None))
    issuer = x509.load_pem_x509_certificate((authority / "ca.crt").read_bytes())
    own = ec.generate_private_key(ec.SECP256R1())
    names = [_checked(host) for host in dict.fromkeys((*hosts, *HERE))]
    certificate = (
        _certificate("fedstride SuperLink", own.public_key(), issuer.subject, key.public_key(), YEAR)
        .add_extension(x509.SubjectAlternativeName(names), False)
        .add_extension(x509.BasicConstraints(False, None), True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False)
        .sign(key, hashes.SHA256())
    )
    _write(folder / "server" / "server.key", _pem(own), 0o600)
    _write(folder / "server" / "server.crt", certificate.public_bytes(Encoding.PEM))
    return certificate.not_valid_after_utc


def _authority(place: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedstride deployment")])
    signs = dict.fromkeys(("key_cert_sign", "crl_sign", "digital_signature"), True)
    others = (
        "content_commitment",
        "key_encipherment",
        "data_encipherment",
        "key_agreement",
        "encipher_only",
        "decipher_only",
    )
    usage = x509.KeyUsage(**signs, **dict.fromkeys(others, False))
    certificate = (
        _certificate("fedstride deployment", key.public_key(), name, key.public_key(), 10 * YEAR)
        .add_extension(x509.BasicConstraints(True, 0), True)
        .add_extension(usage, True)
        .sign(key, hashes.SHA256())
    )
    _write(place / "ca.key", _pem(key), 0o600)
    _write(place / "ca.crt", certificate.public_bytes(Encoding.PEM))


def _certificate(
    name: str,
    key: ec.EllipticCurvePublicKey,
    issuer: x509.Name,
    signer: ec.EllipticCurvePublicKey,
    valid: datetime.timedelta,
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))  # a node's clock may be slow
        .not_valid_after(now + valid)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer), False)
    )


def _checked(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        if NAME.fullmatch(host) and not host.rpartition(".")[2].isdigit():
            return x509.DNSName(host)
    raise InvalidInput(
        f"host={host!r} is invalid: expected a name such as fl.example.org or an address such as 192.0.2.7."
    )


def _known(folder: Path) -> dict[str, str]:
    """Return the values of the placeholders in the templates."""
    try:
        written = json.loads((folder / "deployment.json").read_text())
        hosts, port = written["hosts"], written["port"]
        first = _checked(hosts[0]).value
    except (OSError, ValueError, TypeError, LookupError) as error:
        raise InvalidInput(
            f"{folder} does not contain a deployment ({error!r}); create one with `fedstride deploy init`."
        ) from error
    wide = ":" in hosts[0]
    here, everywhere = ("::1", "::") if wide else ("127.0.0.1", "0.0.0.0")
    loopback = first == "localhost" or getattr(first, "is_loopback", False)  # a host name, or an ipaddress object
    return {
        "ADDRESS": f"[{hosts[0]}]:{port}" if wide else f"{hosts[0]}:{port}",
        "HERE": f"[{here}]" if wide else here,
        "HOSTS": ",".join(hosts),
        "LISTEN": here if loopback else everywhere,
        "PORT": str(port),
        "VERSION": fedstride.__version__,
    }


def _filled(name: str, known: dict[str, str]) -> bytes:
    return re.sub(r"@([A-Z]+)@", lambda m: known[m[1]], (FILES / name).read_text(encoding="utf-8")).encode()


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _write(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Write a file, with its permissions set before its content."""
    path.touch(mode)
    path.chmod(mode)
    path.write_bytes(data)
