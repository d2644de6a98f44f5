"""Runs a study in a folder of its own, and writes down what came out."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from steelyard.errors import SteelyardError
from steelyard.studies import grid
from steelyard.studies.base import Findings, Size, Study
from steelyard.studies.publishing import publish
from steelyard.studies.results import Results
from steelyard.studies.tables import markdown
from steelyard.training import checkpoint
from steelyard.training.folder import refuse_links
from steelyard.training.run import versions


def run(
    study: Study,
    folder: Path,
    *,
    size: Size = "full",
    seeds: int | None = None,
    jobs: int | None = None,
    backend: str = "loky",
    progress: bool = True,
) -> tuple[Findings, dict[str, str]]:
    """Measures what is missing, and writes tables (csv), figures (svg) and ``study.md`` into the folder.

    Args:
        study: The study.
        folder: Where; a folder that holds the same study's cells is gone on with.
        size: ``small`` runs in minutes.
        seeds: How many seeds, if not the size's own number.
        jobs: Cells at once; by default one per core.
        backend: joblib's.
        progress: Whether to show how far it is.

    Returns:
        The findings, and a message for each cell that failed.
    """
    settings = dict(study.settings[size]) | ({} if seeds is None else {"seeds": seeds})
    _claim(folder, {"study": study.name, "size": size, "settings": settings})
    results, failed = grid.run(
        type(study).measure, study.keys(settings), folder / "cells.jsonl",
        settings=settings, jobs=jobs, backend=backend, progress=progress,
    )  # fmt: skip
    if not len(results):
        raise SteelyardError(
            f"study {study.name!r}: no cell could be measured; the first: {next(iter(failed.items()))}"
        )
    findings = study.findings(settings, results)
    _write(folder, study, settings, findings, results, failed)
    return findings, failed


def minutes(
    study: Study, folder: Path, *, size: Size = "full", seeds: int | None = None, jobs: int | None = None
) -> float:
    """About how long what is missing in the folder will take: the study's own estimate for its seeds and two cores."""
    settings = dict(study.settings[size]) | ({} if seeds is None else {"seeds": seeds})
    keys = study.keys(settings)
    missing = len(grid.missing(folder / "cells.jsonl", keys)) / max(1, len(keys))
    share = settings["seeds"] / study.settings[size]["seeds"] if "seeds" in settings else 1
    return study.minutes[size] * share * missing * 2 / (jobs or os.cpu_count() or 1)


def _claim(folder: Path, about: Mapping[str, Any]) -> None:
    """Makes the folder this study's own; the number of seeds may change, as the cells that are there stay true."""
    refuse_links(folder)
    place = folder / "study.json"
    if place.exists():
        known = json.loads(place.read_text(encoding="utf-8"))
        if _lasting(known) != _lasting(json.loads(json.dumps(about))):
            raise SteelyardError(
                f"{folder} belongs to study {known.get('study')!r} ({known.get('size')}) with other settings; "
                "choose another folder (--out)"
            )
    elif folder.exists() and any(folder.iterdir()):
        raise SteelyardError(f"{folder} is not empty and holds no study; choose another folder (--out)")
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint.write_atomically(place, json.dumps(about, indent=1).encode())


def _lasting(about: Mapping[str, Any]) -> dict[str, Any]:
    return {**about, "settings": {k: v for k, v in about["settings"].items() if k != "seeds"}}


def _write(
    folder: Path,
    study: Study,
    settings: Mapping[str, Any],
    findings: Findings,
    results: Results,
    failed: dict[str, str],
) -> None:
    publish(folder, findings, failed, asked=study.summary + (f" ({study.paper})" if study.paper else ""))
    (folder / "study.md").write_text(_page(study, settings, findings, results, failed), encoding="utf-8")


def _page(
    study: Study, settings: Mapping[str, Any], findings: Findings, results: Results, failed: dict[str, str]
) -> str:
    """The findings as Markdown."""
    lines = [f"# {study.name}", "", study.summary + (f" ({study.paper})" if study.paper else ""), "", findings.answer]
    for table in findings.tables:
        lines += ["", f"## {table.title}", "", *markdown(table)]
    lines += [f"\n![{name}]({name}.svg)" for name in findings.figures]
    lines += ["", f"Differs: {findings.differs}"] if findings.differs else []
    lines += ["", f"{len(results)} cells; settings {json.dumps(settings)}; {json.dumps(versions())}"]
    lines += [f"\nFailed: {what}: {why}" for what, why in failed.items()]
    return "\n".join(lines) + "\n"
