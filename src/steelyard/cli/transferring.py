"""``transfer``: what each source is worth to the target."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from steelyard import config as configuration
from steelyard import report, studies
from steelyard.cli.comparing import close, subject
from steelyard.cli.printing import print_json, print_table, raise_failed, say
from steelyard.cli.runs import dated
from steelyard.cli.stopping import resumable


def transfer(
    path: Path,
    changes: tuple[str, ...],
    seeds: int,
    method: str,
    matrix: bool,
    budget: int | None,
    jobs: int | None,
    backend: str,
    out: Path | None,
    as_json: bool,
) -> None:
    """Measures, or goes on measuring, and prints the tables."""
    config = configuration.load(path, configuration.parse_changes(changes))
    folder = out or dated(f"transfer-{path.stem}")
    if not as_json:
        Console(stderr=True).print(
            f"{len(config.source)} sources, {seeds} seeds; to go on after a stop: --out {folder}",
            highlight=False, markup=False, soft_wrap=True,
        )  # fmt: skip
    with resumable(folder):
        found = studies.transfer(
            subject(config, path.parent), out=folder, seeds=seeds, method=method, matrix=matrix, budget=budget,
            jobs=jobs, backend=backend, progress=not as_json,
        )  # fmt: skip
    page = report.write(folder)
    if as_json:
        print_json({"transfer": str(folder), **found.to_json()})
    else:
        for table in found.tables:
            print_table(table.title, table.columns, table.rows, table.columns[1:])
            say(table.note)
        close(found.answer, found.failed, folder, page)
    raise_failed(found.failed, "run", folder)
