"""What was asked of a run, and the answer, in sentences that claim no more than the folder holds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from steelyard.report.html import number
from steelyard.report.plots import mean_interval
from steelyard.report.reading import KINDS, RunRecord

CONTROLS = ("single", "uniform")
"""The methods that others are told against, where a comparison has them."""

LEVEL = 0.05


def asked(run: RunRecord) -> str:
    """What was trained, on what, and how."""
    summary, model = run.summary, run.config.get("model", {})
    rows, others = summary["rows"], [name for name in summary["tasks"] if name != run.target]
    encoder = f", with the encoder {model['encoder']}" if model.get("encoder") else ""
    helped = f", with {listed([f'{name} ({rows.get(name, 0):,})' for name in others])} to learn from" if others else ""
    subject = f"Be good at {run.target}" if run.target else "Be good at every task"
    size = f" ({rows[run.target]:,} labelled rows)" if run.target in rows else ""
    return f"{subject}{size}{helped}{encoder}; weights by {summary['method']}, paradigm {summary['paradigm']}."


def answer(run: RunRecord) -> list[str]:
    """The target's figure against controls, then what is known of the sources."""
    first = " ".join(each for each in (_metric(run), against(run)) if each)
    return [each for each in (first, worth(run), counted(run)) if each]


def _metric(run: RunRecord) -> str:
    metric, roles = run.summary["metric"], run.summary["metrics"]
    if run.target is None:
        return "There is no target; each task's figures stand below."
    for role, rows in (("test", "test rows"), ("dev_select", "the dev rows on which the epoch was chosen")):
        if role in roles:
            value = number(roles[role][metric])
            return f"{run.summary['method']} reaches {metric} {value} on {rows} of {run.target}."
    return f"There were no dev or test rows to judge {run.target} by."


def against(run: RunRecord) -> str:
    """The method's paired differences to its controls over seeds."""
    method, found = run.summary["method"], run.comparison
    controls = [name for name in CONTROLS if name in found and name != method]
    if method not in found or not controls:
        return ""
    gains = []
    for control in controls:
        pairs = [a - b for a, b in zip(found[method], found[control], strict=False)]
        mean, low, high = mean_interval(pairs)
        interval = f" (95 % interval {low:+.4f} to {high:+.4f})" if math.isfinite(low) else ""
        gains.append(f"{mean:+.4f} against {control}{interval}")
    seeds = len(found[method])
    return f"Its mean over {seeds} {'seed' if seeds == 1 else 'seeds'} differs by {'; '.join(gains)}."


def worth(run: RunRecord) -> str:
    """Which sources helped, by the first way in which that was measured; p-values that are corrected decide."""
    if not run.sources:
        return ""
    kinds: dict[str, list[str]] = {"helped": [], "hurt": [], "made no difference that can be told from chance": []}
    helped, hurt, neither = kinds
    decides = run.sources[0].get("kind")
    for each in sorted((one for one in run.sources if one.get("kind") == decides), key=lambda one: -one["gain"]):
        place = neither if not _told(each) else helped if each["gain"] > 0 else hurt
        kinds[place].append(f"{each['source']} ({each['gain']:+.4f})")
    how = f" ({KINDS[str(decides)]})" if decides in KINDS else ""
    return "; ".join(f"{listed(names)} {what}" for what, names in kinds.items() if names) + f"{how}."


def _told(worth: Mapping[str, Any]) -> bool:
    """Whether a worth can be told from chance: by its corrected p-value, or else by its interval."""
    if worth.get("p_holm") is not None:
        return float(worth["p_holm"]) < LEVEL
    low, high = (math.nan if worth.get(end) is None else float(worth[end]) for end in ("low", "high"))
    return low > 0 or high < 0


def counted(run: RunRecord) -> str:
    """What the sources counted for at the end of training, which is not what they were worth."""
    last = {name: weight for name, weight in run.summary["weights"].items() if name != run.target}
    if len(last) < 2 or max(last.values()) - min(last.values()) < 1e-6:
        return ""
    ordered = sorted(last, key=lambda name: -last[name])
    most, least = ordered[0], ordered[-1]
    said = f"Of the sources, {most} counted most at the end ({last[most]:.2f}) and {least} least ({last[least]:.2f})"
    caution = "" if run.sources else "; a weight is what a source counted for, not yet what it was worth"
    return f"{said}{caution}."


def listed(names: list[str], limit: int = 8) -> str:
    """Names in a sentence."""
    if len(names) > limit:
        return f"{', '.join(names[:limit])} and {len(names) - limit} more"
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)
