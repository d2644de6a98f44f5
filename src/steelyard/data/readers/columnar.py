"""Parquet and Arrow files: memory-mapped, with their own types."""

from __future__ import annotations

from typing import TYPE_CHECKING

from steelyard.data import cache
from steelyard.data.table import Table
from steelyard.errors import SteelyardError

if TYPE_CHECKING:
    from pathlib import Path

    from steelyard.data.readers.registry import Dialect


def read_parquet(path: Path, origin: str, dialect: Dialect) -> Table:
    """A parquet, Arrow or feather file."""
    import pyarrow as pa

    try:
        if path.suffix in (".arrow", ".feather") and dialect.format is None:
            table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
        else:
            import pyarrow.parquet as pq

            table = pq.read_table(path, memory_map=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise SteelyardError(f"{origin}: not a whole {path.suffix[1:]} file ({reason}); write it again") from error
    # Views have no kernels for what follows.
    plain = {"string_view": pa.string(), "binary_view": pa.binary()}
    for place, field in enumerate(table.schema):
        if str(field.type) in plain:
            table = table.set_column(place, field.name, table.column(place).cast(plain[str(field.type)]))
    return Table(table, origin, cache.digest("parquet", cache.file_digest(path)))
