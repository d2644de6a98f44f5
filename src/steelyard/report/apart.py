"""A run's page with what a transfer or a comparison has measured of the same target, in runs of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from steelyard.report.answer import listed
from steelyard.report.reading import KINDS, RunRecord, StudyRecord


def joined(run: RunRecord, studies: Sequence[StudyRecord]) -> RunRecord | None:
    """The run with worths, transfer and controls from other folders; None if one of them is about something else."""
    for study in studies:
        said = study.measured
        ground = said.get("ground") or said.get("judged", {}).get(said.get("target"), {})
        if (said.get("target") or ground.get("target")) != run.target or ground.get("metric") != run.summary["metric"]:
            return None
        if "worths" in said:
            matrices = study.findings.get("matrices", [])
            run = replace(run, sources=_worths(said, str(run.target)), matrices=[*run.matrices, *matrices])
        else:
            run = replace(run, comparison=_values(said))
        run = replace(run, apart=[*run.apart, _where(run, study)])
    return run


def _worths(said: dict[str, Any], target: str) -> list[dict[str, Any]]:
    """What each source is worth to the target, the kind that decides first."""
    own = [each for each in said["worths"] if each["target"] == target and each["kind"] in KINDS]
    return sorted(own, key=lambda each: list(KINDS).index(each["kind"]))


def _values(said: dict[str, Any]) -> dict[str, list[float]]:
    """Each method's values, of the seeds that all of them have, in one order."""
    role = said["ground"]["role"]
    found: dict[str, dict[int, float]] = {}
    for each in said["runs"]:
        found.setdefault(each["method"], {})[each["seed"]] = each[role]
    common = sorted(set.intersection(*(set(values) for values in found.values()))) if found else []
    return {method: [values[seed] for seed in common] for method, values in found.items() if common}


def _where(run: RunRecord, study: StudyRecord) -> str:
    """Which folder, how many seeds, and whether it saw the rows that this run saw."""
    seeds = len({cell["key"].get("seed") for cell in study.cells})
    same = study.about.get("subject", {}).get("rows") == run.rows
    rows = "with the first seed on the very rows of this run" if same else "on other rows than this run's"
    others = _settings(run, study.about.get("subject", {}))
    rows += f"; its settings were others: {listed(others)}" if others else ""
    what = "What sources are worth was" if "worths" in study.measured else "Methods and controls were"
    folder = study.path.resolve().name
    return f"{what} measured apart ({folder}), over {seeds} seed{'' if seeds == 1 else 's'}, {rows}."


def _settings(run: RunRecord, subject: dict[str, Any]) -> list[str]:
    """The settings of the other folder's runs that are not this run's."""
    own = {**run.config.get("training", {}), "encoder": run.config.get("model", {}).get("encoder")}
    theirs = {**subject.get("training", {}), "encoder": subject.get("encoder")}
    known = {key: value for key, value in theirs.items() if key in own and value is not None}
    return [f"{key} {value}, not {own[key]}" for key, value in known.items() if value != own[key]]
