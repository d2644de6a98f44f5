"""A real package index on this computer, with one small package, which remembers what it was asked."""

from __future__ import annotations

import io
import os
import re
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

FILE = "corpus-1.0-py3-none-any.whl"


def wheel() -> bytes:
    """A package whose content is never the same."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("corpus/data.txt", os.urandom(40_000).hex())
    return buffer.getvalue()


class Index(ThreadingHTTPServer):
    """A package index with one file of one package."""

    daemon_threads = True

    def __init__(self, content: bytes, name: str = "corpus", file: str = FILE) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.content, self.name, self.file = content, name, file
        self.asked: list[tuple[str, str | None]] = []
        self.ranges = True


class Handler(BaseHTTPRequestHandler):
    """Answers as an index does."""

    server: Index

    def do_GET(self) -> None:
        """The list of the package's files, or the file."""
        self.server.asked.append((self.path, self.headers["Range"]))
        if self.path == f"/simple/{self.server.name}/":
            self._answer(200, f'<a href="/files/{self.server.file}">{self.server.file}</a>'.encode(), "text/html")
        elif self.path == f"/files/{self.server.file}":
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
        """Silence."""


@contextmanager
def served(monkeypatch: pytest.MonkeyPatch, name: str = "corpus", file: str = FILE) -> Iterator[Index]:
    """An index that pip is configured with."""
    with Index(wheel(), name, file) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple")
        monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "file:///nowhere")
        monkeypatch.delenv("STEELYARD_OFFLINE", raising=False)
        for variable in ("PIP_CERT", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.delenv(variable, raising=False)
        yield server
        server.shutdown()
        thread.join()
