"""Files that are whole or absent, and everything that a resumed run needs."""

from __future__ import annotations

import io
import os
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from steelyard.errors import SteelyardError


def write_atomically(path: Path, content: bytes | memoryview) -> None:
    """Writes a file so that a crash, a kill or a full disk leaves the previous one untouched."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise SteelyardError(
            f"{path}: cannot write it ({error.strerror or error}); what was there before is kept; "
            "make room or choose another folder (--out), then run the same command to go on"
        ) from error


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def save(path: Path, state: Mapping[str, Any]) -> None:
    """Writes a checkpoint of tensors and plain values."""
    path.parent.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    write_atomically(path, buffer.getbuffer())


def load(path: Path) -> dict[str, Any]:
    """Reads a checkpoint; refuses one that holds anything but tensors and plain values."""
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, EOFError, OSError, ValueError) as error:
        raise SteelyardError(f"{path}: not a checkpoint that can be read ({error}); delete it to start over") from error
    return state


def random_state() -> dict[str, Any]:
    """The state of every global source of randomness, as tensors and plain values."""
    name, keys, position, has_gauss, gauss = np.random.get_state()  # noqa: NPY002
    state: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": (name, torch.from_numpy(np.asarray(keys).astype(np.int64)), position, has_gauss, gauss),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def set_random_state(state: Mapping[str, Any]) -> None:
    """Puts `random_state` back."""
    random.setstate(state["python"])
    name, keys, position, has_gauss, gauss = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, gauss))  # noqa: NPY002
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])
