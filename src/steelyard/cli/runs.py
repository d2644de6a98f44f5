"""``train`` and ``predict``."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import tomllib
from pathlib import Path
from typing import Any

from rich.console import Console

from steelyard import config as configuration
from steelyard import data, encoders, report
from steelyard.cli import predictions
from steelyard.cli.printing import print_json, print_table, say
from steelyard.config import Config
from steelyard.data import Prepared, Recipe
from steelyard.errors import SteelyardError
from steelyard.training import Run, fit, processes
from steelyard.training.folder import RunFolder, first_difference, plain
from steelyard.training.run import load

RUNS = Path("runs")


def train(path: Path, changes: tuple[str, ...], out: Path | None, as_json: bool) -> None:
    """Trains what a TOML file asks for."""
    config = configuration.load(path, configuration.parse_changes(changes))
    method = config.method.build()
    prepared = data.build(
        config.target, config.source, base=path.parent, seed=config.training.seed, features=config.features
    )
    console = Console(stderr=True)
    if not as_json and processes.leads():
        console.print(prepared.summary.table())
    encoder = config.model.encoder or default_encoder(prepared)
    kept = configuration.resolved(config, path.parent)
    kept["model"]["encoder"] = encoder
    if out is None and processes.launched() > 1:
        raise SteelyardError("several processes train into one folder: name it with --out")
    folder = out or unfinished(kept) or dated(path.stem)
    already = RunFolder(folder).finished
    run = fit(
        prepared.suite,
        encoder,
        method,
        training=config.training,
        encoder_options=config.model.options | pretrained(config, prepared, path.parent),
        out=folder,
        progress=not as_json,
        config=kept,
        files={"recipe.json": prepared.recipe.to_json(), "data.json": json.dumps(prepared.summary.to_json(), indent=1)},
    )
    if not processes.leads():
        return
    if run.row_weights:
        RunFolder(folder).write("examples.jsonl", data.examples(prepared, run.suite, run.row_weights))
    report.write(folder)
    if as_json:
        print_json({"run": str(folder), **run.summary})
    else:
        if already:
            say("this run had finished already")
        print_run(run, folder)


def default_encoder(prepared: Prepared) -> str:
    """The encoder of a configuration that names none: by what the rows are."""
    return encoders.default(prepared.suite.spec)


def pretrained(config: Config, prepared: Prepared, base: Path) -> dict[str, Any]:
    """The word vectors that ``[features] vectors`` names, for the words of this run."""
    words = prepared.recipe.vocabulary
    if config.features.vectors is None or words is None:
        return {}
    found = encoders.read_vectors(data.vectors_file(config.features.vectors, base), words)
    Console(stderr=True).print(f"vectors: {found.coverage:.0%} of {len(words)} words have one", highlight=False)
    return {"vectors": found.values}


def dated(name: str) -> Path:
    """A new folder below ``runs/``."""
    stamp = dt.datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    path = RUNS / f"{stamp}-{name}"
    number = 2
    while path.exists():
        path, number = RUNS / f"{stamp}-{name}-{number}", number + 1
    return path


def unfinished(config: dict[str, Any]) -> Path | None:
    """The newest interrupted run of this very configuration below ``runs/``, so that the same command goes on."""
    for path in sorted(RUNS.glob("*/config.toml"), reverse=True):
        folder = RunFolder(path.parent)
        if folder.finished or not folder.started:
            continue
        with contextlib.suppress(tomllib.TOMLDecodeError, OSError):
            if not first_difference(tomllib.loads(path.read_text(encoding="utf-8")), plain(config)):
                return path.parent
    return None


def print_run(run: Run, folder: Path) -> None:
    """What came out, for a person."""
    summary = run.summary
    rows = []
    for name, roles in summary["tasks"].items():
        metric = run.suite[name].metric
        values = [f"{roles[role][metric]:.4f}" if role in roles else "–" for role in ("dev_select", "test")]
        weight = summary["weights"].get(name)
        rows.append([
            f"{name} (target)" if name == summary["target"] else name, str(summary["rows"].get(name, "")),
            str(metric), *values, "–" if weight is None else f"{weight:.3f}",
        ])  # fmt: skip
    title = f"{summary['method']}, {summary['paradigm']}, {summary['steps']} steps, {summary['seconds']:.1f} s"
    print_table(title, ["task", "rows", "metric", "dev", "test", "weight"], rows, ["rows", "dev", "test", "weight"])
    say(f"run folder: {folder}")


def predict(run_path: Path, path: Path, task: str | None, out: Path | None, as_json: bool) -> None:
    """Predicts a file's rows with a trained run."""
    run = load(run_path)
    if not (run_path / "recipe.json").exists():
        raise SteelyardError(
            f"{run_path}: it was trained in Python, without files; predict in Python: run.predict(inputs)"
        )
    recipe = Recipe.load(run_path / "recipe.json")
    name = task or str(run.suite.target)
    if name not in run.suite.tasks:
        raise SteelyardError(f"{run_path} has no task {name!r}; its tasks are {', '.join(run.suite.tasks)}")
    table = recipe.read(path, name)
    inputs = recipe.encode(table, name)
    found = predictions.rows(path, table, recipe.decode(name, run.outputs(inputs, name), inputs))
    if as_json:
        print_json(found)
    else:
        predictions.write(found, like=path, out=out)
