"""Files that Debian packages carry: where they are installed, or out of the package, without installing it."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from steelyard.data import cache
from steelyard.data.suites.packages import UnreachableError, WrongHashError

HEADER = 60
"""The length of a header in the archive that a .deb file is."""


@dataclass(frozen=True)
class DebianFiles:
    """Some files of a Debian package, pinned.

    Attributes:
        name: The package.
        folder: Where it installs them.
        files: Their names and hashes.
        megabytes: The size of the package.
    """

    name: str
    folder: str
    files: Mapping[str, str]
    megabytes: float
    registry: str = "debian"
    version: str = ""

    @property
    def sha256(self) -> str:
        """One hash for all files."""
        return cache.digest(sorted(self.files.items()))

    @property
    def place(self) -> Path:
        """Where the cache keeps them."""
        return cache.directory() / "packages" / f"debian-{self.name}"

    @property
    def cached(self) -> bool:
        """Whether they are installed, or in the cache."""
        return self.place.is_dir() or all((Path(self.folder) / file).is_file() for file in self.files)

    def fetch(self) -> Path:
        """The folder that holds the files."""
        installed = Path(self.folder)
        if all((installed / file).is_file() for file in self.files):
            return installed
        return cache.made_once(self.place, self._unpack)

    def read(self, file: str) -> bytes:
        """One file.

        Raises:
            UnreachableError: If it is neither installed nor can be fetched.
            WrongHashError: If it is another file than the suite was made from.
        """
        path = self.fetch() / file
        if cache.file_digest(path) != self.files[file]:
            raise WrongHashError(f"{self.name} ({file}): not the file that the suite was made from; it is not used")
        return path.read_bytes()

    def _unpack(self, folder: Path) -> None:
        apt = shutil.which("apt-get")
        reason = "apt-get is not here"
        with tempfile.TemporaryDirectory() as scratch:
            if apt:
                asked = [apt, "download", self.name]
                answer = subprocess.run(asked, cwd=scratch, capture_output=True, text=True, check=False)  # noqa: S603 - names are pinned here
                reason = (answer.stderr.strip().splitlines() or ["no answer"])[-1]
            found = list(Path(scratch).glob("*.deb"))
            if not found:
                raise UnreachableError(
                    f"the Debian package {self.name} ({self.megabytes:g} MB) could not be fetched ({reason}); "
                    f"install it, or put {', '.join(self.files)} into {self.place}"
                )
            with tarfile.open(fileobj=io.BytesIO(_data_part(found[0].read_bytes()))) as archive:
                for file in self.files:
                    inner = archive.extractfile(f".{self.folder}/{file}")
                    if inner is not None:
                        (folder / file).write_bytes(inner.read())


def _data_part(content: bytes) -> bytes:
    """The files of a .deb: the member ``data.tar.*`` of an ar archive."""
    place = 8
    while place < len(content):
        name, size = content[place : place + 16].decode().strip(" /"), int(content[place + 48 : place + 58])
        place += HEADER
        if name.startswith("data.tar"):
            return content[place : place + size]
        place += size + size % 2
    raise ValueError("not a Debian package")
