"""``advise``: before training, which sources look as if they help, and what to start with."""

from __future__ import annotations

import math
from pathlib import Path

from rich.console import Console

from steelyard import config as configuration
from steelyard import data
from steelyard.cli.printing import print_json, print_table, progress, say
from steelyard.cli.runs import default_encoder, pretrained
from steelyard.diagnostics import Advice, advise

EXPECTED = {"help": "a help", "unclear": "unclear", "harm": "a harm"}


def advice(path: Path, changes: tuple[str, ...], as_json: bool) -> None:
    """Prints what can be said of a TOML file's sources before training."""
    config = configuration.load(path, configuration.parse_changes(changes))
    prepared = data.build(
        config.target, config.source, base=path.parent, seed=config.training.seed, features=config.features
    )
    if not as_json:
        Console(stderr=True).print(prepared.summary.table())
    with progress(2 + len(config.source) if config.source else 1, quiet=as_json) as done:
        found = advise(
            prepared.suite, config.model.encoder or default_encoder(prepared), training=config.training, progress=done,
            method=config.method.build() if "method" in config.model_fields_set else None,
            encoder_options=config.model.options | pretrained(config, prepared, path.parent),
        )  # fmt: skip
    if as_json:
        print_json(found.to_json())
    else:
        _print(found)


def _print(found: Advice) -> None:
    rows = [
        [
            each.source, f"{each.rows:,}", _share(each.labels), f"{each.similarity:.2f}",
            f"{each.distance:+.4f} ± {each.error:.4f}", f"{each.told:+.4f} ± {each.told_error:.4f}",
            EXPECTED[each.expected],
        ] for each in found.sources
    ]  # fmt: skip
    columns = ["source", "rows", "labels in common", "similarity", "distance", "told", "looks like"]
    if rows:
        print_table(f"sources of {found.target!r} ({found.rows:,} rows)", columns, rows, columns[1:-1])
        say("distance: the smaller, the nearer; told: what its labels tell of the target's, above shuffled labels")
    say(f"start with: method {found.method}, paradigm {found.paradigm}")
    for reason in found.reasons:
        say(f"  {reason}")
    memory = f"up to about {found.peak_mb:,.0f} MB of memory"
    say(f"{found.costed}: {found.steps:,} steps, about {_duration(found.seconds)}, {memory}")
    say("this is a look at an untrained encoder: steelyard compare tells what a method is worth")


def _share(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.0%}"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.1f} hours"
