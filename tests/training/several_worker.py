"""What each of several processes does in `test_several.py`: every case for some steps, then what came of it."""

import contextlib
import json
import os
import signal
import sys
import traceback
from functools import partial
from pathlib import Path

import torch
from torch import nn

from steelyard import SteelyardError, methods, testing
from steelyard.methods import Method
from steelyard.testing import promises
from steelyard.testing.materials import parameters
from steelyard.training.loop import Interrupted
from steelyard.training.progress import Silent

STEPS = 20


class Objective(Method):
    """An objective that is not linear in the losses, with parameters of its own."""

    name, summary, range = "objective", "a test's", "nonnegative"

    def adapt(self, model):
        model.add_module("method", nn.ParameterDict({"u": torch.zeros(len(model.tasks))}))

    def step(self, job):
        own = job.model.method["u"]
        job.minimise(job.batch(), lambda losses: (losses.square() * (-own).exp() + own).sum(), self.weights)


class Follower(Method):
    """Weights that follow the losses that a step returns, the curvature and the gradients of a probe of its rows."""

    name, summary, range = "follower", "a test's", "nonnegative"

    def step(self, job):
        with job.probe(job.batch(), "all") as probe:
            found = probe.gradient(self.weights)
            curvature = sum(value.norm() for value in probe.hessian(self.weights)(found).values())
            seen = probe.losses.detach() + probe.norms() + curvature
        seen = seen + job.losses(job.batch()).detach() + job.descend(job.batch(), self.weights)
        self.weights = seen / seen.sum()


class ByLoss(Method):
    """Weights that are a function of the step's losses."""

    name, summary, range = "by_loss", "a test's", "nonnegative"

    def step(self, job):
        job.descend(job.batch(), lambda losses: losses / losses.sum())


class Drifter(Method):
    """Parameters that each process moves in its own way, which nothing but a comparison finds out."""

    name, summary, range = "drifter", "a test's", "nonnegative"

    def step(self, job):
        super().step(job)
        with torch.no_grad():
            next(job.model.parameters()).add_(1e-6 * int(os.environ["RANK"]))


def cases():
    """What is compared with one process, by name: a method and settings."""
    found = {name: (methods.get(name), {}) for name in methods.names()}
    found["turns"] = (methods.get("uniform"), {"batching": "one_task"})
    found["pieces"] = (methods.get("tawt"), {"accumulate": 3, "batch_size": 3})
    found["pieces of a combination"] = (methods.get("pcgrad"), {"accumulate": 3, "batch_size": 3})
    found["by size"] = (methods.get("joint"), {"sampling": "proportional"})
    found["one row of each"] = (methods.get("uniform"), {"batch_size": 1})
    found["pre-training"] = (methods.get("tawt"), {"paradigm": "pretrain"})
    found["curvature"] = (partial(methods.get("tawt"), signal="hypergradient"), {})
    found["objective"] = (Objective, {})
    found["pieces of an objective"] = (Objective, {"accumulate": 3, "batch_size": 3})
    found["follower"] = (Follower, {})
    found["by loss"] = (ByLoss, {})
    found["pieces by loss"] = (ByLoss, {"accumulate": 3, "batch_size": 3})
    found["Adam"] = (methods.get("metaweighting"), {"optimizer": "AdamW"})
    return found


def outcome(make, settings, **more):
    """Parameters and weights after some steps; or why the method refuses."""
    chosen = {"epochs": 2, "steps_per_epoch": STEPS // 2, "batch_size": 7, "keep": "last", "optimizer": "SGD"}
    try:
        run = testing.train(
            make, testing.suite(missing=True), network=testing.plain_encoder, **chosen | settings, **more
        )
    except SteelyardError as error:
        return {"refused": str(error)}
    return {"parameters": parameters(run).tolist(), "weights": run.weight_trace}


class KillAt(Silent):
    """Ends one of the processes, as the kernel would."""

    def __init__(self, rank, step):
        self.rank, self.at, self.seen = rank, step, 0

    def step(self, done, losses, weights):
        self.seen += 1
        if self.seen == self.at and os.environ["RANK"] == str(self.rank):
            os.kill(os.getpid(), signal.SIGKILL)


def outcome_of_a_death(folder, **more):
    """A run with checkpoints after each step, one process of which may be killed after some."""
    settings = {"checkpoint_seconds": 0, "log_every": 1, "out": folder / "run"}
    return outcome(methods.get("tawt"), settings, **more)


def resumed_bitwise(folder):
    """Interrupted and resumed in as many processes, with dropout and BatchNorm."""
    for name in ("tawt", "alphavil"):
        settings = {"log_every": 1, "checkpoint_seconds": 0, "batch_size": 16}
        whole = testing.train(methods.get(name), **settings)
        out = folder / f"resumed-{name}"
        with contextlib.suppress(Interrupted):
            testing.train(methods.get(name), out=out, progress=promises.StopAt(4), **settings)
        again = testing.train(methods.get(name), out=out, **settings)
        assert whole.weight_trace == again.weight_trace, name
        assert torch.equal(parameters(whole), parameters(again)), name
    return {"parameters": parameters(again).tolist(), "weights": again.weight_trace}


def every_case(folder):
    found = {}
    asked = {name: partial(outcome, *case) for name, case in cases().items()}
    asked |= {"resumed": partial(resumed_bitwise, folder), "drift": partial(outcome, Drifter, {})}
    for name, case in asked.items():
        try:
            found[name] = case()
        except Exception:  # noqa: BLE001 - it is told, and no case after it would be in step
            found[name] = {"failed": traceback.format_exc()}
            break
    (folder / f"{os.environ['RANK']}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "die":
        said = outcome_of_a_death(Path(sys.argv[2]), progress=KillAt(rank=1, step=12))
        sys.exit(said["refused"])
    every_case(Path(sys.argv[2]))
