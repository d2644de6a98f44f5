"""What runs are made of when they are compared: data for a seed, an encoder, and settings of the loop."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import torch
from torch import nn

from steelyard import data, encoders
from steelyard.data import FeatureOptions, SourceData, TargetData
from steelyard.errors import SteelyardError
from steelyard.tasks import Suite
from steelyard.training import Training
from steelyard.training.folder import digest

Encoder = str | nn.Module | Callable[[], nn.Module]
"""A name, a network (each run trains a copy), or what makes a network (called under the run's seed)."""


@dataclass(frozen=True)
class Tables:
    """Data as a configuration describes it; a seed decides which rows are drawn and held out.

    Attributes:
        target: The table ``[target]``.
        sources: The tables ``[[source]]``.
        features: The table ``[features]``.
        base: The folder that relative paths start from.
    """

    target: Mapping[str, Any]
    sources: tuple[Mapping[str, Any], ...] = ()
    features: Mapping[str, Any] = field(default_factory=dict)
    base: str = "."

    def read(self, seed: int) -> data.Prepared:
        """The data of a seed."""
        return _read(json.dumps([self.target, self.sources, self.features], sort_keys=True), self.base, seed)


@lru_cache(maxsize=1)
def _read(tables: str, base: str, seed: int) -> data.Prepared:
    """Runs of one seed follow each other, so the last data that was read is mostly the next that is wanted."""
    target, sources, features = json.loads(tables)
    return data.build(
        TargetData(**target), [SourceData(**each) for each in sources], base=base, seed=seed,
        features=FeatureOptions(**features),
    )  # fmt: skip


@dataclass(frozen=True)
class Subject:
    """One configuration without its method: what every run of a comparison has in common.

    Attributes:
        source: Tables of files; a suite; or a function from a seed to a suite.
        encoder: See `Encoder`; None chooses by what the rows are.
        encoder_options: Options of a named encoder.
        training: Settings of the loop; the seed is each run's own.
        tasks: The tasks that are trained, the first of them the target; None for all.
    """

    source: Tables | Suite | Callable[[int], Suite]
    encoder: Encoder | None = None
    encoder_options: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    tasks: tuple[str, ...] | None = None

    def only(self, target: str, sources: Sequence[str], steps_per_epoch: int) -> Subject:
        """The same for some of its tasks, with a number of steps that does not depend on which."""
        training = {**self.training, "steps_per_epoch": steps_per_epoch}
        return replace(self, tasks=(target, *sources), training=training)

    def suite(self, seed: int) -> Suite:
        """The tasks of a seed."""
        whole = self._whole(seed)
        if self.tasks is None:
            return whole
        tasks = [whole[name] for name in self.tasks]
        return Suite(tasks, self.tasks[0], whole.allow, whole.spec.padding, whole.spec.vocabulary or None)

    @classmethod
    def of(
        cls, given: Any, encoder: Encoder | None, encoder_options: Mapping[str, Any], training: Mapping[str, Any]
    ) -> Subject:
        """A subject from what a user gives: one, or a suite or what draws one, with its encoder and settings."""
        if not isinstance(given, Subject):
            given = cls(given, encoder, encoder_options, training)
        elif encoder is not None or encoder_options or training:
            raise SteelyardError("a Subject has its own encoder and settings; give them there")
        found: Subject = given
        Training(**found.training)
        return found

    @property
    def first(self) -> int:
        """The first seed."""
        return int(self.training.get("seed", 0))

    def _whole(self, seed: int) -> Suite:
        if isinstance(self.source, Tables):
            return self.source.read(seed).suite
        return self.source if isinstance(self.source, Suite) else self.source(seed)

    def network(self, suite: Suite, seed: int) -> tuple[str | nn.Module, dict[str, Any]]:
        """A fresh encoder (or its name) with its options: the same for every run of a seed."""
        options = dict(self.encoder_options)
        if isinstance(self.source, Tables) and self.source.features.get("vectors"):
            file = data.vectors_file(self.source.features["vectors"], self.source.base)
            options["vectors"] = encoders.read_vectors(file, self.source.read(seed).recipe.vocabulary or []).values
        if self.encoder is None or isinstance(self.encoder, str):
            return self.encoder or encoders.default(suite.spec), options
        if isinstance(self.encoder, nn.Module):
            return copy.deepcopy(self.encoder), {}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.encoder(), {}

    def about(self, seed: int) -> dict[str, Any]:
        """What makes two subjects the same, in plain values: the rows of a seed, the encoder, the settings."""
        if not isinstance(self.source, (Tables, Suite)) and not callable(self.source):
            raise SteelyardError(f"compare needs a suite or a function from a seed to one, not {self.source!r}")
        named = self.encoder if self.encoder is None or isinstance(self.encoder, str) else _name(self.encoder)
        about: dict[str, Any] = {
            "rows": digest(self.suite(seed)), "encoder": named, "encoder_options": _plain(self.encoder_options),
            "training": {k: v for k, v in self.training.items() if k != "seed"},
        }  # fmt: skip
        if isinstance(self.source, Tables):
            about["tables"] = [self.source.target, *self.source.sources]
        return about


def _name(encoder: object) -> str:
    return getattr(encoder, "__qualname__", type(encoder).__qualname__)


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options without tensors, which are in the encoder's own state."""
    return {key: value for key, value in options.items() if not isinstance(value, torch.Tensor)}
