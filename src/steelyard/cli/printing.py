"""What commands print: tables for people, one JSON object for machines."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from steelyard.data.table import listed
from steelyard.errors import SteelyardError


def print_json(value: Any) -> None:
    """One JSON object on standard output; what is not a number there is null."""
    click.echo(json.dumps(_finite(value), indent=1, ensure_ascii=False))


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[str] = ()) -> None:
    """A table on standard output; columns named in ``numbers`` stand to the right."""
    table = Table(title=title, title_justify="left", title_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 200  # a file has no edge to fold at
    console.print(table)


def say(line: str) -> None:
    """A line on standard output."""
    click.echo(line)


def raise_failed(failed: Mapping[str, str], what: str, folder: Path) -> None:
    """Ends a command with status 2 if some of its runs failed, when all that did not has been printed and written."""
    if failed:
        count = f"1 {what}" if len(failed) == 1 else f"{len(failed)} {what}s"
        raise SteelyardError(
            f"{count} failed: {listed(list(failed), 5)}; the same command with --out {folder} tries again"
        )


@contextmanager
def progress(total: int, quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """A bar on standard error for work of several parts; call what it gives with each part that is done."""
    bar = Progress(console=Console(stderr=True), transient=True, disable=quiet)
    with bar:
        task = bar.add_task("", total=total)
        yield lambda part: bar.update(task, advance=1, description=part)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and (not math.isfinite(value)) else value
