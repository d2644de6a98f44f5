"""`fit`: from a suite and an encoder to a trained run; and a run, as it is held in Python."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import cache, partial
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from steelyard import encoders, heads, methods
from steelyard.data import suites
from steelyard.errors import SteelyardError, as_written, did_you_mean
from steelyard.methods import Method
from steelyard.model import SharedModel
from steelyard.tasks import Inputs, Kind, Role, Spec, Suite, Task, Units
from steelyard.training import checkpoint, devices, processes
from steelyard.training.folder import ROW_WEIGHTS, Log, RunFolder, digest, refuse_links
from steelyard.training.loop import Loop
from steelyard.training.memory import peak_mb
from steelyard.training.progress import Display, display
from steelyard.training.settings import Paradigm, Training

_HEADS_ARE_REGISTERED = heads


class Run:
    """A trained run.

    Attributes:
        model: The trained model.
        summary: What came out: target metrics, every task's metrics, weights, seconds, seed, versions.
        history: One dictionary per evaluation.
        weight_trace: ``(step, task, weight)`` over training.
        folder: The run folder, if there is one.
        row_weights: What each training row counted for within its task at the end, ``[n_t]`` with mean 1, for tasks
            whose rows have weights of their own.
    """

    def __init__(
        self,
        model: SharedModel,
        suite: Suite,
        summary: dict[str, Any],
        log: Log,
        folder: Path | None,
        row_weights: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.model, self.suite, self.summary, self.folder = model, suite, summary, folder
        self.history, self.weight_trace = log.metrics, log.weights
        self.row_weights = {name: weights.detach().cpu() for name, weights in (row_weights or {}).items()}

    @property
    def metrics(self) -> dict[str, dict[str, float]]:
        """The target's metrics by role (every task's, where there is no target: see ``summary["tasks"]``)."""
        found: dict[str, dict[str, float]] = self.summary["metrics"]
        return found

    @property
    def weights(self) -> dict[str, float]:
        """The last weights of the tasks."""
        found: dict[str, float] = self.summary["weights"]
        return found

    def outputs(self, inputs: Inputs, task: str | None = None) -> Tensor:
        """A task's outputs (logits, or numbers in their own units) for new inputs; by default the target's."""
        name = self._task(task)
        return self.suite[name].in_units(self.model.predict(inputs, name))

    def predict(self, inputs: Inputs, task: str | None = None) -> Tensor:
        """A task's predictions: class indices ``[N]``, 0/1 labels ``[N, K]``, numbers ``[N, K]`` or tags ``[N, L]``."""
        name = self._task(task)
        outputs = self.outputs(inputs, name)
        kind = self.suite[name].kind
        if kind is Kind.REGRESSION:
            return outputs
        return (outputs > 0).long() if kind is Kind.MULTILABEL else outputs.argmax(-1)

    def _task(self, name: str | None) -> str:
        name = name or self.suite.target
        if name is None:
            raise SteelyardError(f"which task? there is no target; name one of {', '.join(self.suite.tasks)}")
        return name


def fit(
    suite: Suite,
    encoder: nn.Module | SharedModel | str,
    method: str | Method | Mapping[str, Any] = "uniform",
    *,
    training: Training | Mapping[str, Any] | None = None,
    encoder_options: Mapping[str, Any] | None = None,
    out: Path | str | None = None,
    progress: bool | Display = True,
    config: Mapping[str, Any] | None = None,
    files: Mapping[str, str] | None = None,
    **settings: Any,
) -> Run:
    """Trains a model for a suite.

    Args:
        suite: The tasks, one of them the target.
        encoder: The shared network: a module (trained in place), or the name of a built-in or Hugging Face one.
        method: How tasks are weighted: a name (see ``steelyard.methods.names()``), a method with its options, or
            weights of losses and a combination of gradients: ``{"weights": "tawt", "gradients": "pcgrad"}``.
        training: Settings of the loop; single ones can be given as keywords: ``fit(…, epochs=5)``.
        encoder_options: Options of a named encoder.
        out: The run folder. With one, an interrupted run goes on where it stopped, and a finished one is read back.
        progress: Whether to show progress, or a display of your own.
        config: What to keep as ``config.toml``; by default the settings.
        files: More files to keep in the run folder, by name.
        **settings: Settings of the loop by name.

    Returns:
        The run, with the best model by the target's dev metric.
    """
    method = methods.build(method)
    training = resolve(training, method, settings)
    if method.needs_target and suite.target is None:
        raise SteelyardError(f"method {method.name!r} needs a target; name one: Suite(tasks, target=…)")
    folder = None if out is None else RunFolder(out)
    accelerator = devices.accelerator(training, folder.path if folder else None)
    if folder is not None:
        about = config or _config(suite, encoder, encoder_options, method, training)
        processes.first_does(accelerator, partial(folder.claim, about, files or {}, digest(suite)))
    try:
        with seeded(training.seed):
            suite = method.prepare(suite, training.seed)
            model = shared_model(encoder, suite, encoder_options)
            method.adapt(model)
            if folder is not None and folder.finished:
                return _read_back(model, suite, folder)
            shown = display(progress if accelerator.is_main_process or not isinstance(progress, bool) else False)
            return _train(model, suite, method, training, accelerator, folder, shown, _named(encoder, encoder_options))
    finally:
        if folder is not None:
            folder.release()


def _train(
    model: SharedModel,
    suite: Suite,
    method: Method,
    training: Training,
    accelerator: Any,
    folder: RunFolder | None,
    shown: Display,
    named: dict[str, Any] | None,
) -> Run:
    if training.trackers:
        accelerator.init_trackers("steelyard", {"method": method.name, **_flat(training)})
    loop = Loop(model, suite, method, training, accelerator, folder, shown)
    try:
        loop.run()
        summary = processes.first_does(accelerator, partial(_summary, loop, method, training))
    finally:
        if training.trackers:
            accelerator.end_training()
    if folder is not None and accelerator.is_main_process:
        folder.write("model.json", json.dumps(description(suite, named, method), indent=1))
        folder.write("model.safetensors", model_bytes(model))
        if method.row_weights():
            folder.write_row_weights(method.row_weights())
        for name, text in method.files(loop.log.metrics).items():
            folder.write(name, text)
        folder.write("summary.json", json.dumps(summary, indent=1))
    accelerator.wait_for_everyone()
    return Run(model, suite, summary, loop.log, folder.path if folder else None, method.row_weights())


def resolve(training: Training | Mapping[str, Any] | None, method: Method, settings: Mapping[str, Any]) -> Training:
    """The settings of the loop, with the paradigm that the method calls for."""
    given = training.model_dump(exclude_unset=True) if isinstance(training, Training) else dict(training or {})
    given |= settings
    if method.paradigm is not None:
        given["paradigm"] = Paradigm(method.paradigm)
    try:
        return Training(**given)
    except ValidationError as error:
        raise SteelyardError(f"training: {one_line(error, Training)}") from None


def one_line(error: ValidationError, model: Any) -> str:
    """The first thing that is wrong, with the right name where one was misspelt."""
    first = error.errors()[0]
    key = ".".join(map(str, first["loc"]))
    if first["type"] == "extra_forbidden":
        known = list(model.model_fields)
        hint = did_you_mean(str(first["loc"][-1]), known) or f"the keys are {', '.join(known)}"
        return f"there is no key {key!r}; {hint}"
    return f"{key} = {first['input']!r}: {first['msg'].removeprefix('Value error, ')}"


def shared_model(
    encoder: nn.Module | SharedModel | str, suite: Suite, options: Mapping[str, Any] | None = None
) -> SharedModel:
    """The model of a suite, with a named encoder built from the random state as it is."""
    if isinstance(encoder, SharedModel):
        return encoder
    return SharedModel(_built(encoder, suite.spec, options or {}) if isinstance(encoder, str) else encoder, suite)


def _built(name: str, spec: Spec, options: Mapping[str, Any]) -> nn.Module:
    """An encoder by name; ``suite:minilm`` is fetched and checked first."""
    place = str(suites.pretrained(name)) if name.startswith(suites.PREFIX) else name
    return encoders.build(place, spec, **options)


def _named(encoder: object, options: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """What builds a named encoder again; pretrained vectors are in the model's own tensors by then."""
    if not isinstance(encoder, str):
        return None
    kept = {key: value for key, value in (options or {}).items() if not isinstance(value, Tensor)}
    if options and isinstance(options.get("vectors"), Tensor):
        kept["size"] = options["vectors"].shape[1]
    return {"name": encoder, "options": kept}


def _config(
    suite: Suite, encoder: object, options: Mapping[str, Any] | None, method: Method, training: Training
) -> dict[str, Any]:
    named = _named(encoder, options) or {"name": type(encoder).__qualname__, "options": {}}
    return {
        "suite": {"target": suite.target, "tasks": list(suite.tasks)},
        "model": {"encoder": named["name"], **named["options"]},
        "method": {"name": method.name, **method.options.model_dump()},
        "training": training.model_dump(mode="json"),
    }


def _summary(loop: Loop, method: Method, training: Training) -> dict[str, Any]:
    suite = loop.suite
    tasks = {
        name: {str(role): loop.evaluate(name, role) for role in (Role.DEV_SELECT, Role.TEST) if role in task.rows}
        for name, task in suite.tasks.items()
    }
    last = loop.log.metrics
    weighted = [line for line in last if line["phase"] != "finetune"] or last
    return {
        "target": suite.target,
        "metric": suite[suite.target].metric if suite.target else None,
        "metrics": tasks[suite.target] if suite.target else {},
        "tasks": tasks,
        "method": method.name,
        "paradigm": str(training.paradigm),
        "weights": weighted[-1]["weights"],
        "rows": suite.sizes(),
        "best_epoch": loop.at.best_epoch,
        "steps": loop.at.total,
        "seconds": round(loop.seconds, 3),
        "peak_memory_mb": peak_mb(),
        "seed": training.seed,
        "versions": dict(versions()),
    }


@cache
def versions() -> Mapping[str, str]:
    """What this was computed with."""
    packages = {name: metadata.version(name) for name in ("steelyard", "torch", "numpy", "accelerate")}
    return {"python": platform.python_version(), **packages}


def _read_back(model: SharedModel, suite: Suite, folder: RunFolder) -> Run:
    load_model(model, folder.path / "model.safetensors")
    log = Log(folder)
    log.read_back()
    with as_written(folder.path / ROW_WEIGHTS):
        weights = folder.row_weights()
    return Run(model, suite, folder.read_json("summary.json"), log, folder.path, weights)


def model_bytes(model: nn.Module) -> bytes:
    """A model as safetensors; tied parameters are kept once, under their first name."""
    kept = {name: value for name, value in model.state_dict().items() if name in _first_names(model)}
    return save_tensors({name: value.detach().cpu().contiguous() for name, value in kept.items()})


def load_model(model: nn.Module, path: Path) -> None:
    """Reads what `model_bytes` wrote."""
    with as_written(path):
        try:
            found = model.load_state_dict(load_tensors(path.read_bytes()), strict=False)
        except SafetensorError as error:
            raise ValueError(error) from error
    missing = set(found.missing_keys) & _first_names(model)
    if missing or found.unexpected_keys:
        wrong = sorted(missing)[:1] or found.unexpected_keys[:1]
        raise SteelyardError(f"{path}: not this model's parameters ({wrong[0]!r} differs)")


def _first_names(model: nn.Module) -> set[str]:
    return {name for name, _ in model.named_parameters()} | {name for name, _ in model.named_buffers()}


def description(suite: Suite, named: dict[str, Any] | None, method: Method) -> dict[str, Any]:
    """What is needed to build the model again: its encoder, if it has a name, and its tasks."""
    return {
        "encoder": named,
        "method": {"name": method.name, "options": method.options.model_dump(mode="json")},
        "spec": {
            "shape": suite.spec.shape,
            "vocabulary": suite.spec.vocabulary,
            "padding": suite.spec.padding,
        },
        "target": suite.target,
        "tasks": [
            {
                "name": t.name,
                "kind": str(t.kind),
                "classes": t.classes,
                "outputs": t.outputs,
                "metric": t.metric,
            }
            | ({"head": t.head} if isinstance(t.head, str) else {})
            | ({"units": asdict(t.units)} if t.units else {})
            for t in suite.tasks.values()
        ],
    }


def load(folder: Path | str, encoder: nn.Module | None = None) -> Run:
    """Reads a finished run back from its folder.

    Args:
        folder: The run folder.
        encoder: The encoder, where the run was not given one by name.
    """
    run = RunFolder(folder)
    refuse_links(run.path)
    if not run.finished:
        state = "has not finished; run the same command again" if run.started else "is not a finished run's folder"
        raise SteelyardError(f"{folder} {state}")
    about = run.read_json("model.json")
    with as_written(run.path / "model.json"):
        model, suite = _described(about, run.path, encoder)
    return _read_back(model, suite, run)


def _described(about: Mapping[str, Any], folder: Path, encoder: nn.Module | None) -> tuple[SharedModel, Suite]:
    """The model that `description` has described, with parameters still to be read."""
    if encoder is None:
        if about["encoder"] is None:
            raise SteelyardError(f"{folder}: its encoder has no name; give it: load(folder, encoder=…)")
        spec = Spec(tuple(about["spec"]["shape"]), about["spec"]["vocabulary"], about["spec"]["padding"])
        encoder = _built(about["encoder"]["name"], spec, about["encoder"]["options"])
    tasks = [
        Task(data={}, **(task | ({"units": Units(**task["units"])} if "units" in task else {})))
        for task in about["tasks"]
    ]
    suite = Suite(tasks, about["target"], vocabulary=about["spec"]["vocabulary"], padding=about["spec"]["padding"])
    model = SharedModel(encoder, suite)
    if set(about["method"]["name"].split("+")) <= set(methods.names()):
        methods.get(about["method"]["name"])(**about["method"]["options"]).adapt(model)
    return model, suite


def _flat(training: Training) -> dict[str, Any]:
    return {k: v for k, v in training.model_dump(mode="json").items() if isinstance(v, (int, float, str))}


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Makes what happens inside depend on the seed alone, and leaves the caller's randomness as it was."""
    before = checkpoint.random_state()
    import random

    import numpy as np

    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    torch.manual_seed(seed)
    try:
        yield
    finally:
        checkpoint.set_random_state(before)
