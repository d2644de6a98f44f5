"""Files that are whole or absent, and everything that a resumed run needs: tensors and JSON, never a pickle."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import random
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save_file as save_tensors
from torch import Tensor

from steelyard.errors import SteelyardError

_NO_SUM = "0" * 64
_PLAIN = (bool, int, float, str, type(None))


def write_atomically(path: Path, content: bytes | Callable[[Path], None], keep: Path | None = None) -> None:
    """Writes a file so that a crash, a kill or a full disk leaves the previous one untouched.

    Args:
        path: The file.
        content: What it will hold; or what writes it, given where.
        keep: Where what it held before goes.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    _forget_killed_writers(path)
    try:
        if isinstance(content, bytes):
            temporary.write_bytes(content)
        else:
            content(temporary)
        _sync(temporary)
        if keep is not None and path.exists():
            path.replace(keep)
        temporary.replace(path)
        _sync(path.parent)
    except (OSError, SafetensorError) as error:
        temporary.unlink(missing_ok=True)
        raise SteelyardError(
            f"{path}: cannot write it ({getattr(error, 'strerror', None) or error}); what was there before is kept; "
            "make room or choose another folder (--out), then run the same command to go on"
        ) from error


def _forget_killed_writers(path: Path) -> None:
    """Removes what a writer that was killed in mid-file has left: as large as the file, once for every kill."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.*"):
        number = left.suffix[1:]
        if number.isdecimal() and not _runs(int(number)):
            left.unlink(missing_ok=True)


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True  # somebody else's, or no process's number
    return True


def _sync(path: Path) -> None:
    """Waits until a file or a folder is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def before(path: Path) -> Path:
    """Where the checkpoint that a newer one has replaced is kept."""
    return path.with_name(f"before.{path.name}")


def exists(path: Path) -> bool:
    """Whether there is a checkpoint, or the one before it."""
    return path.exists() or before(path).exists()


def save(path: Path, state: Mapping[str, Any]) -> None:
    """Writes a checkpoint of tensors and plain values, and keeps the one before.

    It is a safetensors file; its metadata hold what is no tensor, as JSON, and a checksum of the whole file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, Tensor] = {}
    plain = json.dumps(_packed(dict(state), tensors, {}))

    def write(file: Path) -> None:
        # A state may be many times the model: it goes to the file as it lies, and the sum is taken from there.
        save_tensors(tensors, file, {"state": plain, "sha256": _NO_SUM})
        with file.open("r+b") as written:
            total = hashlib.file_digest(written, "sha256").hexdigest().encode()
            written.seek(0)
            length = int.from_bytes(written.read(8), "little")
            written.seek(0)
            before_sum, _ = _around_sum(written.read(8 + length))
            written.seek(len(before_sum))
            written.write(total)

    write_atomically(path, write, keep=before(path))


def load(path: Path) -> tuple[dict[str, Any], str]:
    """Reads a checkpoint; a torn or damaged one is passed over for the one before.

    Returns:
        The state; and what was wrong with the newest file, or nothing.
    """
    found: list[str] = []
    for each in (path, before(path)):
        try:
            state = _read(each)
            if found:
                path.unlink(missing_ok=True)  # else the next checkpoint would put it in the place of the whole one
            return state, "; ".join(found)
        except FileNotFoundError:
            continue
        except (OSError, ValueError, KeyError, TypeError, IndexError, RecursionError, SafetensorError) as error:
            found.append(f"{each}: not a whole checkpoint ({error})")
    raise SteelyardError(f"{'; '.join(found) or f'{path}: there is no checkpoint'}; delete the folder to start over")


def _read(path: Path) -> dict[str, Any]:
    content = path.read_bytes()
    before_sum, after_sum = _around_sum(content)
    total = hashlib.sha256(before_sum)
    total.update(_NO_SUM.encode())
    total.update(after_sum)
    if total.hexdigest().encode() != content[len(before_sum) : len(content) - len(after_sum)]:
        raise ValueError("its checksum is not that of its content")
    length = int.from_bytes(content[:8], "little")
    plain = json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["state"])
    state = _unpacked(plain, load_tensors(content))
    if not isinstance(state, dict):
        raise TypeError("it holds no table")
    return state


def _around_sum(content: bytes) -> tuple[memoryview, memoryview]:
    """What stands before the checksum, and after it."""
    length = int.from_bytes(content[:8], "little")
    key = b'"sha256":"'
    place = content.find(key, 8, min(8 + length, len(content)))
    if place < 0:
        raise ValueError("it has no checksum")
    start, view = place + len(key), memoryview(content)
    return view[:start], view[start + len(_NO_SUM) :]


def _packed(value: Any, tensors: dict[str, Tensor], known: dict[Any, str]) -> Any:
    """A value as JSON can hold it; tensors go into ``tensors``, those that share their memory once."""
    if isinstance(value, Tensor):
        value = value.detach()
        same = (value.data_ptr(), value.shape, value.stride(), value.dtype) if value.numel() else object()
        if same not in known:
            known[same] = str(len(tensors))
            tensors[known[same]] = _apart(value.cpu(), known)
        return {"tensor": known[same]}
    if isinstance(value, Mapping):
        pairs = [[_packed(k, tensors, known), _packed(v, tensors, known)] for k, v in value.items()]
        return {"counts" if isinstance(value, Counter) else "table": pairs}
    if isinstance(value, (list, tuple)):
        items = [_packed(item, tensors, known) for item in value]
        return items if isinstance(value, list) else {"tuple": items}
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, np.generic):
        return value.item()
    raise SteelyardError(f"a checkpoint holds tensors and plain values, not {type(value).__name__}")


def _apart(value: Tensor, known: dict[Any, str]) -> Tensor:
    """A tensor on the CPU that has its memory for itself, as the format wants it; a copy only where it must be."""
    storage = value.untyped_storage()
    place = ("memory", storage.data_ptr())
    taken = place in known
    known[place] = ""
    if taken or storage.nbytes() != value.nbytes or not value.is_contiguous():
        return value.clone(memory_format=torch.contiguous_format)
    return value


def _unpacked(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_unpacked(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "tuple":
        return tuple(_unpacked(item, tensors) for item in content)
    table = {_unpacked(k, tensors): _unpacked(v, tensors) for k, v in content}
    return Counter(table) if kind == "counts" else table


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
