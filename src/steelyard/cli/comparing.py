"""``compare``: methods against each other and against controls, on one configuration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from steelyard import config as configuration
from steelyard import report, studies
from steelyard.cli.printing import print_json, print_table, raise_failed, say
from steelyard.cli.runs import dated
from steelyard.cli.stopping import resumable
from steelyard.config import Config
from steelyard.studies import Subject, Tables
from steelyard.studies.contestants import CONTROLS, Given


def compare(
    path: Path,
    changes: tuple[str, ...],
    methods: str | None,
    seeds: int,
    controls: bool,
    budget: int,
    jobs: int | None,
    backend: str,
    keep_runs: bool,
    out: Path | None,
    as_json: bool,
) -> None:
    """Compares, or goes on comparing, and prints the table."""
    config = configuration.load(path, configuration.parse_changes(changes))
    asked = _asked(methods, config)
    folder = out or dated(f"compare-{path.stem}")
    if not as_json:
        count = len(asked) + sum(controls and name not in asked for name in CONTROLS)
        Console(stderr=True).print(
            f"{count} methods and controls, {seeds} seeds: {count * seeds} runs"
            + (f" after {budget} trials for each" if budget > 1 else "")
            + f"; to go on after a stop: --out {folder}",
            highlight=False, markup=False, soft_wrap=True,
        )  # fmt: skip
    with resumable(folder):
        found = studies.compare(
            subject(config, path.parent), methods=asked, out=folder, seeds=seeds, controls=controls, budget=budget,
            jobs=jobs, backend=backend, keep_runs=keep_runs, progress=not as_json,
        )  # fmt: skip
    page = report.write(folder)
    if as_json:
        print_json({"comparison": str(folder), **found.to_json()})
    else:
        table = found.table
        print_table(table.title, table.columns, table.rows, table.columns[1:])
        say(table.note)
        close(found.answer, found.failed, folder, page)
    raise_failed(found.failed, "run", folder)


def subject(config: Config, base: Path) -> Subject:
    """A configuration without its method."""
    tables = configuration.resolved(config, base)
    return Subject(
        Tables(tables["target"], tuple(tables["source"]), tables["features"], str(base.resolve())),
        config.model.encoder, config.model.options, config.training.model_dump(mode="json", exclude_unset=True),
    )  # fmt: skip


def close(answer: str, failed: Mapping[str, str], folder: Path, page: Path) -> None:
    """What stands below the tables: the answer, what failed and why, and where all of it is."""
    say(answer)
    for what, why in failed.items():
        say(f"failed: {what}: {why}")
    say(f"every number: {folder}; to look at: {page}")


def _asked(methods: str | None, config: Config) -> list[Given]:
    """The methods that were named; the configuration's own keeps its options, and is what is asked about by default."""
    own = config.method.build()
    if methods is None:
        return [own]
    names = [name.strip() for name in methods.split(",") if name.strip()]
    return [own if name == own.name else name for name in names]
