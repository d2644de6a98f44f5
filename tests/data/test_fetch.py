"""Packages are fetched from the configured index, resumed, checked, and safe between processes.

A real index answers here, on this computer, with a small package.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from steelyard.data import suites
from steelyard.data.suites.debian import DebianFiles
from steelyard.data.suites.packages import Package
from steelyard.errors import SteelyardError

FILE = "corpus-1.0-py3-none-any.whl"


def wheel() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("corpus/data.txt", os.urandom(40_000).hex())
    return buffer.getvalue()


class Index(ThreadingHTTPServer):
    """A package index with one package, which remembers what it was asked."""

    daemon_threads = True

    def __init__(self, content: bytes) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.content = content
        self.asked: list[tuple[str, str | None]] = []
        self.ranges = True


class Handler(BaseHTTPRequestHandler):
    server: Index

    def do_GET(self) -> None:
        self.server.asked.append((self.path, self.headers["Range"]))
        if self.path == "/simple/corpus/":
            self._answer(200, f'<a href="/files/{FILE}">{FILE}</a>'.encode(), "text/html")
        elif self.path == f"/files/{FILE}":
            start = int(re.sub(r"\D", "", self.headers["Range"] or "0"))
            if start and self.server.ranges:
                self._answer(206, self.server.content[start:])
            else:
                self._answer(200, self.server.content)
        else:
            self._answer(404, b"")

    def _answer(self, status: int, content: bytes, kind: str = "application/octet-stream") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    with Index(wheel()) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple")
        monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "file:///nowhere")
        monkeypatch.delenv("STEELYARD_OFFLINE", raising=False)
        for name in ("PIP_CERT", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.delenv(name, raising=False)
        yield server
        server.shutdown()
        thread.join()


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
