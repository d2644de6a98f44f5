"""Folders of images: one folder per class."""

from __future__ import annotations

from typing import TYPE_CHECKING

from steelyard.data import cache
from steelyard.data.table import Table
from steelyard.errors import SteelyardError

if TYPE_CHECKING:
    from pathlib import Path

ENDINGS = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}


def read_images(path: Path, origin: str) -> Table:
    """A table with the columns ``image`` (a path) and ``label`` (the folder that the image lies in)."""
    import pyarrow as pa

    files = sorted(p for p in path.rglob("*") if p.suffix.lower() in ENDINGS and p.parent != path)
    if not files:
        raise SteelyardError(f"{origin}: no images in folders of their class ({origin}/CLASS/NAME.png)")
    labels = [p.relative_to(path).parts[0] for p in files]
    content = [(p.relative_to(path).as_posix(), p.stat().st_size, p.stat().st_mtime_ns) for p in files]
    table = pa.table({"image": [str(p) for p in files], "label": labels})
    return Table(table, origin, cache.digest("images", str(path.resolve()), content))
