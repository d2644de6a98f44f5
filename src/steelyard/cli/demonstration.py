"""``demo``: what sources are worth, on real data, in under two minutes."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import torch

from steelyard import data, report
from steelyard.cli.printing import print_json, print_table, progress, say
from steelyard.cli.runs import dated
from steelyard.data import SourceData, TargetData
from steelyard.errors import SteelyardError
from steelyard.methods import get
from steelyard.tasks import Suite
from steelyard.training import Run, Training, fit

METHODS = ("single", "uniform", "joint", "tawt")
RECOMMENDED = "tawt"
_DOMAINS = ("amazon", "movies", "tweets", "editorials")
_ENCODERS = {"digits": "mlp", "sentiment4": "textcnn"}
_SETTINGS = {
    "digits": Training(epochs=30, batch_size=32, learning_rate=2e-3),
    "sentiment4": Training(epochs=5, batch_size=32, learning_rate=1e-3),
}


def demo(name: str, seeds: int, out: Path | None, as_json: bool) -> None:
    """Trains single task, fixed weights and learned weights over some seeds; keeps the recommended method's first run.

    Meant for a person who sees Steelyard for the first time, so it says at once what it is going to do.
    """
    folder = out or dated("demo")
    torch.set_num_threads(1)  # a model as small as these loses more by handing work over than it gains
    if folder.exists() and any(folder.iterdir()):
        raise SteelyardError(f"{folder} is not empty; choose another folder (--out)")
    if not as_json:
        _introduce(_suite(name, 0), name)
    runs: dict[str, list[Run]] = {method: [] for method in METHODS}
    with progress(len(METHODS) * seeds, quiet=as_json) as done:
        for seed in range(seeds):
            for method in METHODS:
                runs[method].append(_run(method, name, seed, folder))
                done(f"{method}, seed {seed}")
    results = {method: [_value(run) for run in each] for method, each in runs.items()}
    (folder / "comparison.json").write_text(json.dumps(results, indent=1), encoding="utf-8")
    report.write(folder)
    if as_json:
        print_json({"run": str(folder), "metric": runs["single"][0].summary["metric"], "results": results})
        return
    rows = [_row(method, results, runs) for method in METHODS]
    metric = str(runs["single"][0].summary["metric"])
    seed_names = [f"seed {seed}" for seed in range(seeds)]
    columns = ["method", "mean", "± sd", "gain", *seed_names, "seconds"]
    print_table(f"{name}: test {metric} of {runs['single'][0].suite.target!r}", columns, rows, columns[1:])
    say("single is the target alone, with as many steps as the others; gain is against it")
    learned = runs[RECOMMENDED][0].weights
    shown = ", ".join(f"{task} {weight:.2f}" for task, weight in sorted(learned.items(), key=lambda item: -item[1]))
    say(f"what each task counted for at the end ({RECOMMENDED}, seed 0): {shown}")
    say(f"run folder ({RECOMMENDED}, seed 0): {folder}")


def _suite(name: str, seed: int) -> Suite:
    """The target with few labels, and its sources."""
    if name == "digits":
        return data.suites.demo(seed)
    target, *sources = _DOMAINS
    few = TargetData(name=target, train=f"suite:sentiment4/{target}@100")
    others = [SourceData(name=source, train=f"suite:sentiment4/{source}@1000") for source in sources]
    return data.build(few, others, seed=seed).suite


def _introduce(suite: Suite, name: str) -> None:
    sizes = suite.sizes()
    sources = ", ".join(f"{source} ({sizes[source]} rows)" for source in suite.sources)
    say(f"{name}: the target is {suite.target!r} with {sizes[str(suite.target)]} labelled rows; sources: {sources}")


def _run(method: str, name: str, seed: int, folder: Path) -> Run:
    # The single task gets as many steps as the others, or it would lose for want of training.
    chosen = get(method)(**({"matched": True} if method == "single" else {}))
    kept = folder if method == RECOMMENDED and seed == 0 else None
    suite = _suite(name, seed)
    training = _SETTINGS[name].model_copy(update={"seed": seed})
    return fit(suite, _ENCODERS[name], chosen, training=training, out=kept, progress=False)


def _value(run: Run) -> float:
    return float(run.metrics["test"][run.summary["metric"]])


def _row(method: str, results: dict[str, list[float]], runs: dict[str, list[Run]]) -> list[str]:
    values = results[method]
    gain = statistics.mean(values) - statistics.mean(results["single"])
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    seconds = sum(run.summary["seconds"] for run in runs[method])
    against = "" if method == "single" else f"{gain:+.4f}"
    cells = [
        f"{statistics.mean(values):.4f}",
        f"{spread:.4f}",
        against,
        *(f"{v:.4f}" for v in values),
        f"{seconds:.1f}",
    ]
    return [method, *cells]
