"""The user's cache: content hashes, a lock between processes, and tensors that are written once and memory-mapped."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np
import torch
from torch import Tensor

from steelyard.errors import SteelyardError

VARIABLE = "STEELYARD_CACHE"
FORMAT = 1
"""Raised whenever what is kept changes its meaning, so that old files are not read."""


def directory() -> Path:
    """The cache folder: ``$STEELYARD_CACHE``, or the platform's folder for caches."""
    chosen = os.environ.get(VARIABLE)
    if chosen:
        return Path(chosen).expanduser()
    import platformdirs

    return Path(platformdirs.user_cache_dir("steelyard", appauthor=False))


def digest(*parts: object) -> str:
    """A hash of JSON-able settings and other hashes."""
    return hashlib.sha256(json.dumps([FORMAT, *parts], sort_keys=True, default=str).encode()).hexdigest()


def file_digest(path: Path) -> str:
    """The sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def full_disk_told(place: Path) -> Iterator[None]:
    """Says a full disk, and a folder that may not be written, in one line."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise SteelyardError(
                f"the disk is full: {place} could not be written; free some space or set {VARIABLE} to another folder"
            ) from error
        if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
            raise SteelyardError(f"{place} may not be written; set {VARIABLE} to a folder of your own") from error
        raise


@contextmanager
def locked(place: Path) -> Iterator[None]:
    """One process at a time: others wait here."""
    import filelock

    with full_disk_told(place):
        place.parent.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(f"{place}.lock")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def made_once(place: Path, make: Callable[[Path], None]) -> Path:
    """A folder that is filled by ``make`` if it is not there yet: complete or absent, never half written."""
    if place.is_dir():
        return place
    with locked(place), full_disk_told(place):
        if place.is_dir():
            return place
        draft = Path(tempfile.mkdtemp(prefix=f".{place.name[:16]}-", dir=place.parent))
        try:
            make(draft)
            draft.replace(place)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    return place


class Writer:
    """Streams named tensors into a folder, piece by piece."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[str, IO[bytes]] = {}
        self._index: dict[str, tuple[str, list[int]]] = {}

    def add(self, name: str, piece: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> None:
        """Appends rows to a tensor."""
        dtype, shape = self._index.setdefault(name, (str(piece.dtype), [0, *piece.shape[1:]]))
        if dtype != str(piece.dtype) or shape[1:] != list(piece.shape[1:]):
            raise ValueError(f"{name}: pieces of {dtype} {shape[1:]} and of {piece.dtype} {piece.shape[1:]}")
        if name not in self._files:
            self._files[name] = (self.folder / f"{name}.bin").open("wb")
        self._files[name].write(np.ascontiguousarray(piece).tobytes())
        shape[0] += len(piece)

    def close(self) -> None:
        """Ends the files and writes their index."""
        for file in self._files.values():
            file.close()
        (self.folder / "index.json").write_text(json.dumps(self._index))


def write(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Keeps whole tensors."""
    writer = Writer(folder)
    for name, tensor in tensors.items():
        writer.add(name, tensor.numpy())
    writer.close()


def read(folder: Path) -> dict[str, Tensor]:
    """The tensors of a folder, memory-mapped: pages are read when they are used, and changes stay in memory."""
    index: dict[str, tuple[str, list[int]]] = json.loads((folder / "index.json").read_text())
    tensors = {}
    for name, (dtype, shape) in index.items():
        kind = torch.from_numpy(np.empty(0, dtype=dtype)).dtype
        size = int(np.prod(shape))
        if size == 0:
            tensors[name] = torch.empty(shape, dtype=kind)
        else:
            flat = torch.from_file(str(folder / f"{name}.bin"), shared=False, size=size, dtype=kind)
            tensors[name] = flat.view(shape)
    return tensors
