"""``distance``: how far each source is from the target."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path

from steelyard import config as configuration
from steelyard import data
from steelyard.cli.printing import print_json, print_table, progress, say
from steelyard.cli.runs import default_encoder, pretrained
from steelyard.diagnostics import Distance, Estimate, task_distances
from steelyard.errors import SteelyardError
from steelyard.tasks import Suite

WITHOUT_TRAINING: Estimate = "answers"


def distance(
    path: Path, all_pairs: bool, quick: bool, changes: tuple[str, ...], out: Path | None, as_json: bool
) -> None:
    """Prints the distances of a TOML file's sources to its target, or of every task to every other."""
    config = configuration.load(path, configuration.parse_changes(changes))
    prepared = data.build(
        config.target, config.source, base=path.parent, seed=config.training.seed, features=config.features
    )
    suite = prepared.suite
    if not suite.sources:
        raise SteelyardError(f"{path}: there is no source to measure a distance to; add a [[source]]")
    estimates: list[Estimate] = [WITHOUT_TRAINING] if quick else ["trained", WITHOUT_TRAINING]
    found: list[Distance] = []
    # Trained: a representation per task. Without training the target has none of its own, unless it is a source too.
    with progress(len(suite) * len(estimates) - (0 if all_pairs else 1), quiet=as_json) as done:
        for estimate in estimates:
            found += task_distances(
                suite, config.model.encoder or default_encoder(prepared), suite.tasks if all_pairs else None,
                estimate=estimate, training=config.training, progress=done,
                encoder_options=config.model.options | pretrained(config, prepared, path.parent),
            )  # fmt: skip
    if out is not None:
        write(out, found)
    if as_json:
        print_json([asdict(each) for each in found])
        return
    if all_pairs:
        for estimate in estimates:
            _print_matrix(suite, [each for each in found if each.estimate == estimate])
    else:
        _print_list(suite, found)
    say("the smaller, the nearer; below 0 a source's representation serves the target better than what its rows teach")


def write(path: Path, found: Sequence[Distance]) -> None:
    """Distances as csv."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Distance)])
        writer.writeheader()
        writer.writerows(asdict(each) for each in found)


def _print_list(suite: Suite, found: Sequence[Distance]) -> None:
    by_source: dict[str, dict[str, Distance]] = {}
    for each in found:
        by_source.setdefault(each.sources, {})[each.estimate] = each
    shown = [name for name in ("trained", WITHOUT_TRAINING) if any(name in each for each in by_source.values())]
    order = sorted(by_source, key=lambda name: by_source[name][shown[0]].value)
    titles = {"trained": "distance", WITHOUT_TRAINING: "without training"}
    rows = [
        [name, str(suite[name].size()), *(f"{(d := by_source[name][e]).value:+.4f} ± {d.error:.4f}" for e in shown)]
        for name in order
    ]
    columns = ["source", "rows", *(titles[e] for e in shown)]
    print_table(f"distance to {suite.target!r}, ± standard error", columns, rows, columns[1:])


def _print_matrix(suite: Suite, found: Sequence[Distance]) -> None:
    value = {(each.sources, each.target): f"{each.value:+.4f}" for each in found}
    rows = [[source, *(value.get((source, target), "") for target in suite.tasks)] for source in suite.tasks]
    how = "" if found[0].estimate == "trained" else ", without training"
    print_table(f"task distance{how}", ["source", *suite.tasks], rows, [*suite.tasks])
