"""SVD weights (Wu, Zhang and Ré, ICLR 2020, Algorithm 2), also for tasks with inputs of their own."""

from __future__ import annotations

from typing import Any, Literal

import torch
from pydantic import Field, PositiveInt, model_validator
from torch import Tensor

from steelyard import gradients
from steelyard.errors import SteelyardError
from steelyard.functional import cross_validated_rank, moment_weights, spectral_gap_rank
from steelyard.methods import base
from steelyard.methods.base import Method
from steelyard.methods.job import Job
from steelyard.methods.svd import products
from steelyard.methods.svd.coding import Coding
from steelyard.tasks import Ragged, Role, Suite

FOLDS = 5


class SVD(Method):
    """A task counts for as much as its labels' signal lies in the directions that the tasks' signals share.

    1. θ_t = Z_tᵀ y_t, features times labels, a column for each column of the labels;
    2. U_r: the first r left singular vectors of [θ_1 … θ_k];
    3. α_t = ‖θ_tᵀ U_r‖, and w ∝ α, times the paradigm's weights.

    Features Z are the inputs (the paper's case: the same X for all tasks), what the heads read, or tangent features
    of the shared encoder; the last two follow the encoder from epoch to epoch.
    """

    name = "svd"
    summary = "a task counts for as much as its labels' signal lies in directions that the tasks share"
    paper = "Wu, Zhang and Ré 2020, Understanding and Improving Information Transfer in Multi-Task Learning"
    cost = "1 step, and the features of at most `rows` rows per task and epoch"

    class Options(base.Options):
        """Options of `SVD`."""

        features: Literal["auto", "inputs", "representation", "gradients"] = Field(
            default="auto",
            description="what labels are multiplied with; auto: inputs of one shape, else representation",
        )
        rank: PositiveInt | Literal["gap", "cross_validation"] = Field(
            default="gap", description="r: a number, at the spectrum's largest gap, or by held-out rows"
        )
        center: bool = Field(default=True, description="subtract the means of features and labels")
        standardize: bool = Field(default=True, description="labels of one size, whatever their unit and noise")
        scale_free: bool = Field(default=False, description="the share of a task's signal that is common, not its size")
        rows: int | None = Field(
            default=2048, ge=2, description="at most so many rows per task, where the encoder is asked"
        )
        scope: str = Field(default="shared", description="the parameters of the gradient features")
        update: Literal["start", "epoch"] = Field(default="epoch", description="when features that move are asked")
        as_published: bool = Field(default=False, description="other defaults: the inputs, and labels as they are")

        @model_validator(mode="before")
        @classmethod
        def _published(cls, given: Any) -> Any:
            known = {"features": "inputs", "center": False, "standardize": False}
            return known | given if isinstance(given, dict) and given.get("as_published") else given

    options: Options

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._suite: Suite | None = None

    def prepare(self, suite: Suite, seed: int) -> Suite:
        """Keeps the suite, whose rows are the features' source."""
        del seed
        self._suite = suite
        return suite

    def start(self, job: Job) -> None:
        """The weights of the features as they are before training."""
        super().start(job)
        self.state["prior"] = self.weights
        self._weigh(job)

    def after_epoch(self, job: Job) -> None:
        """The same of the features as they are now, if training moves them."""
        if self.options.update == "epoch" and self._features(job) != "inputs":
            self._weigh(job)

    def notes(self) -> dict[str, float]:
        """The rank."""
        return {"rank": float(self.state["rank"])}

    def _weigh(self, job: Job) -> None:
        """Steps 1 to 3."""
        folds = self._products(job)
        owners = torch.cat([torch.full((found.shape[1],), t) for t, found in enumerate(folds)])
        moments = torch.cat(folds, 1)
        rank = self._rank(moments)
        weights = moment_weights(moments.mean(0), rank, self.options.scale_free, owners=owners)
        prior = self.state["prior"]
        weights = prior * weights.to(prior)
        self.weights = weights / weights.sum() if bool(weights.sum() > 0) else prior
        self.state["rank"] = torch.tensor(float(rank))

    def _products(self, job: Job) -> list[Tensor]:
        """Each task's θ, ``[folds, c, d]``."""
        suite, options = self._held(), self.options
        most = None if self._features(job) == "inputs" else options.rows
        chosen: dict[str, Tensor] = {}
        for rows, names in products.shared(suite, job.tasks):
            chosen |= dict.fromkeys(names, torch.randperm(len(rows), generator=job.generator)[:most])
        codings = {
            name: Coding.of(suite[name], suite[name].rows[Role.TRAIN].select(chosen[name]).labels, options.center,
                            options.standardize)
            for name in job.tasks
        }  # fmt: skip
        device = next((p.device for p in job.model.parameters()), None)
        with gradients.pure(job.model):
            found = products.products(
                suite, codings, chosen, self._source(job), center=options.center, device=device,
                folds=FOLDS if options.rank == "cross_validation" else 1,
            )  # fmt: skip
        return list(found.values())

    def _source(self, job: Job) -> products.Features:
        kind = self._features(job)
        if kind == "inputs":
            return products.inputs
        if kind == "representation":
            return products.representation(job.model)
        return products.tangent(job.model, self.options.scope, job.generator)

    def _features(self, job: Job) -> str:
        """Where features come from; inputs only where all are numbers, as many for each task."""
        kind, suite = self.options.features, self._held()
        if kind not in ("auto", "inputs"):
            return kind
        rows = {name: suite[name].rows[Role.TRAIN].inputs for name in job.tasks}
        texts = [name for name, each in rows.items() if isinstance(each, Ragged)]
        widths = {name: each[0].numel() for name, each in rows.items() if not isinstance(each, Ragged)}
        if not texts and len(set(widths.values())) == 1:
            return "inputs"
        if kind == "auto":
            return "representation"
        why = f"the inputs of task {texts[0]!r} are words" if texts else f"inputs have different sizes: {widths}"
        raise SteelyardError(f"method 'svd', features = 'inputs': {why}; use features = 'representation'")

    def _rank(self, moments: Tensor) -> int:
        rank, most = self.options.rank, min(moments.shape[1:])
        if rank == "gap":
            return spectral_gap_rank(moments[0])
        if rank == "cross_validation":
            return cross_validated_rank(moments)
        if rank > most:
            raise SteelyardError(
                f"method 'svd', option 'rank': {rank}, but the tasks' labels and features span {most} directions; "
                "give a smaller number, or 'gap'"
            )
        return rank

    def _held(self) -> Suite:
        if self._suite is None:
            raise SteelyardError("method 'svd' needs the suite's rows: call method.prepare(suite, seed) first")
        return self._suite
