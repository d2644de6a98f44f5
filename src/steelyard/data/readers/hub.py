"""Hugging Face data sets: by hub name, or a folder that ``save_to_disk`` wrote."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from steelyard.data import cache
from steelyard.data.table import Table, listed
from steelyard.errors import SteelyardError

ROLES = {"dev": ("validation", "dev", "valid", "val"), "test": ("test",), "train": ("train",)}


class _Splits:
    """A reader of data sets that know their own splits."""

    def __init__(self, load: Callable[[str], dict[str, Any]]) -> None:
        self._load = load

    def splits(self, name: str | Path) -> tuple[str, ...]:
        """Which of train, dev and test it brings."""
        if isinstance(name, Path) and not _is_saved(name):
            return ()
        parts = self._load(str(name))
        return tuple(role for role, names in ROLES.items() if any(n in parts for n in names))

    def __call__(self, name: str | Path, shown: str, split: str) -> Table:
        """One split as a table; ``shown`` is what messages call the data set."""
        parts = self._load(str(name))
        chosen = next((n for n in ROLES[split] if n in parts), None)
        if chosen is None:
            raise SteelyardError(
                f"{shown}: there is no split {split!r}, only {listed(list(parts))}; name a file instead"
            )
        return _table(parts[chosen], f"{shown} ({chosen})")


def _table(data: Any, origin: str) -> Table:
    import pyarrow as pa

    data = data.flatten_indices() if data._indices is not None else data
    table = data.data.table
    for name, feature in data.features.items():
        if type(feature).__name__ == "ClassLabel":
            codes = table.column(name).to_pylist()
            names = [None if code is None or code < 0 else feature.int2str(code) for code in codes]
            table = table.set_column(table.schema.get_field_index(name), name, pa.array(names, pa.string()))
    return Table(table, origin, cache.digest("datasets", data._fingerprint))


def _is_saved(path: Path) -> bool:
    return (path / "dataset_dict.json").exists() or (path / "dataset_info.json").exists()


def _library() -> Any:
    try:
        import datasets
    except ImportError:
        raise SteelyardError("Hugging Face data sets need the extra 'text': pip install 'steelyard[text]'") from None
    return datasets


@lru_cache(maxsize=8)
def _from_disk(path: str) -> dict[str, Any]:
    loaded = _library().load_from_disk(path)
    return dict(loaded) if isinstance(loaded, dict) else {"train": loaded}


@lru_cache(maxsize=8)
def _from_hub(name: str) -> dict[str, Any]:
    library = _library()
    path, _, config = name.partition(":")
    try:
        return dict(library.load_dataset(path, config or None))
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise SteelyardError(
            f"hub:{name}: the data set could not be loaded ({reason}); check the name and the network, "
            "or name a local folder that save_to_disk wrote"
        ) from error


read_hub = _Splits(_from_hub)
read_local = _Splits(_from_disk)
