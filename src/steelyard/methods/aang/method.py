"""META-TARTAN (Dery et al., ICLR 2022) and AANG (Dery, Michel, Khodak, Neubig and Talwalkar, ICLR 2023)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from steelyard.errors import SteelyardError
from steelyard.functional import factored_gradient, factored_weights, sample_objectives
from steelyard.methods._turns import with_dev_meta
from steelyard.methods.aang.module import add_auxiliary, fit_dev_head, meta_direction, special_tokens
from steelyard.methods.aang.options import AANGOptions, TartanOptions
from steelyard.methods.aang.spaces import Plan, planned
from steelyard.methods.aang.trace import table
from steelyard.methods.base import Method
from steelyard.methods.job import Job
from steelyard.methods.tawt.heads import head_inputs
from steelyard.model import SharedModel
from steelyard.objectives import Data, Maker, Space, merged
from steelyard.tasks import Batch, Role, Suite

MEMORY = 0.9
"""How much of the signal's earlier size is kept."""


class Tartan(Method):
    """META-TARTAN: objectives made of the task's own data, weighted for the end task's loss on held-out rows.

    In each step, on rows of the end task E and of every objective k, all in one encoder call:

    1. w = softmax of the objectives' logits, (λ_e, λ_a) = softmax of two more;
    2. now and then: a dev head is fitted on training rows, the body as it is;
    3. v = ∇_body L_E^val(body; dev head) on held-out rows;
    4. θ moves along λ_e ∇L_E + λ_a Σ w_k ∇L_k; from the same backward c_k = -⟨∇_body L_k, v⟩, for E too   (Eq. 5);
    5. every logit moves against the gradient of Σ w_k c_k, and of λ_e c_E + λ_a Σ w_k c_k.

    The weights of a run are λ_e for the target and λ_a w_k for the objectives. Sources with labels take part as they
    stand; those named in ``data`` lend their rows alone.
    """

    name = "tartan"
    summary = "objectives from the task's own data, weighted by how they serve its held-out rows"
    paper = "Dery et al. 2022, Should We Be Pre-training? An Argument for End-task Aware Training"
    needs_target = True
    scale_free = False
    composes = False
    cost = "1.5 steps, a gradient of 16 held-out rows (`meta_rows`) among them"
    Options = TartanOptions

    options: TartanOptions

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._plan: Plan | None = None
        self._maker: Maker | None = None

    @property
    def space(self) -> Space:
        """The objectives, once there is a suite."""
        return self._planned().space

    def prepare(self, suite: Suite, seed: int) -> Suite:
        """Holds rows of the target out for meta-gradients, and makes every objective a task."""
        if not self.options.static:
            o = self.options
            suite = with_dev_meta(suite, self.name, o.dev_fraction, o.train_fraction, seed)
        self._plan, self._maker = planned(self.options, suite), None
        return self._plan.suite

    def adapt(self, model: SharedModel) -> None:
        """Adds the dev head and the decoder of token objectives."""
        add_auxiliary(model, self.options.copies)

    def start(self, job: Job) -> None:
        """All logits are 0."""
        missing = set(self.space.names) - set(job.tasks)
        if missing or job.tasks_per_step < len(job.tasks):
            raise SteelyardError(
                f"method {self.name!r} trains its objectives in every step: use paradigm joint, normalised_joint or "
                "pretrain, and batching = 'all_tasks'"
            )
        device = job.initial_weights.device
        for name, shape in self._shapes().items():
            self.state[f"logits.{name}"] = torch.zeros(shape, dtype=torch.float64, device=device)
        self.state["logits.end"] = torch.zeros(2, dtype=torch.float64, device=device)
        self.state["signal"] = torch.zeros(2, dtype=torch.float64, device=device)
        self._forget(job)
        self.weights = self._shared_out(job, self._every(), self._among(self._every()))

    def step(self, job: Job) -> None:
        """Steps θ, and the logits if it is time."""
        chosen = self._chosen(job)
        among = self._among(chosen)
        self.weights = self._shared_out(job, chosen, among)
        batch = self._batch(job, chosen)
        if self.options.static or job.step % self.options.every:
            job.descend(batch, self.weights)
        else:
            slopes = self._descend(job, batch)
            if bool(slopes.isfinite().all()):  # the loop names the task whose loss is no number
                self._learn(job, chosen, among, -slopes.double())
        self.state["sum"] += self._among(self._every())
        self.state["count"] += 1

    def after_epoch(self, job: Job) -> None:
        """Keeps the epoch's mean weights for its line of the log."""
        self.state["mean"] = self.state["sum"] / self.state["count"].clamp(min=1)
        self._forget(job)

    def notes(self) -> dict[str, float]:
        """The epoch's mean weight of each primitive and each objective among the objectives, and λ_e at its end."""
        mean = self.state["mean"]
        each = dict(zip(self.space.names, mean.tolist(), strict=True))
        return {"lambda_e": float(self._ends()[0])} | self.space.shares(mean) | each

    def files(self, history: Sequence[Mapping[str, Any]]) -> dict[str, str]:
        """``objectives.csv``: what each objective and primitive counted for, early and late."""
        return {"objectives.csv": table(self.space, history)}

    def _descend(self, job: Job, batch: Batch) -> Tensor:
        """Lines 2 to 4: the step, and ⟨∇_body L_t, v⟩ of every task (or their cosine, as released)."""
        direction = self._direction(job)
        if self.options.signal != "cosine":
            return job.descend_along(batch, self.weights, direction)[1]
        found = job.dissect(batch, self.weights, "shared")[1]
        length = torch.stack([value.norm() for value in direction.values()]).norm()
        cosines: Tensor = found.slopes(direction) / (found.norms() * length).clamp_min(1e-30)
        return cosines

    def _direction(self, job: Job) -> dict[str, Tensor]:
        """v, with the dev head fitted if it is time; its rows, the meta-gradient's and those that choose differ."""
        auxiliary: Any = job.model.get_submodule("method")
        o, head, target = self.options, auxiliary.head, str(job.model.target)
        if (job.step // o.every) % o.head_every == 0:
            rows = job.draw(Role.TRAIN, o.head_rows, (target,))
            fit_dev_head(job.model, head, head_inputs(job.model, rows, target), rows, o.head_steps, o.head_rate)
        return meta_direction(job.model, head, job.draw(Role.DEV_META, o.meta_rows, (target,)))

    def _learn(self, job: Job, chosen: Tensor, among: Tensor, answers: Tensor) -> None:
        """Line 5: ``answers`` are c, ``[T]``."""
        answers = self._sized(job, answers)
        own = answers[self._places(job)[chosen]]
        self._move(chosen, among, own)
        if job.target is None:
            return
        ends, pair = self._ends(), torch.stack([answers[job.target], among @ own])
        gradient = ends * (pair - ends @ pair) if self.options.jacobian else pair
        self.state["logits.end"] = self.state["logits.end"] - self.options.end_rate * gradient

    def _sized(self, job: Job, answers: Tensor) -> Tensor:
        """The signal as it is to move logits."""
        if self.options.signal == "product":
            return answers * job.rate
        if self.options.signal == "cosine":
            return answers
        present = answers[answers != 0]
        new = torch.stack([present.square().mean() if len(present) else answers.new_zeros(()), answers.new_ones(())])
        self.state["signal"] = MEMORY * self.state["signal"] + (1 - MEMORY) * new
        square, mass = self.state["signal"]
        scaled: Tensor = answers / (square / mass).sqrt().clamp_min(1e-30)
        return scaled

    def _batch(self, job: Job, chosen: Tensor) -> Batch:
        """The step's rows of the end task, of sources that stand as they are, and of the chosen objectives."""
        space, suite = self.space, self._planned().suite
        plain = [name for k in chosen.tolist() if (name := space.objectives[k].name) in space.sources]
        whole = [*([str(suite.target)] if job.target is not None else []), *plain]
        parts = [part for name in whole for part in job.alone(name, job.step).to("cpu").parts]
        made = torch.tensor([k for k in chosen.tolist() if not space.objectives[k].plain], dtype=torch.long)
        if len(made):
            per = max(1, self.options.auxiliary_rows // len(made))
            parts += self._making(job.model).parts(made, per, job.generator)
        return merged(parts, suite.spec.padding).to(job.initial_weights.device)

    def _making(self, model: SharedModel) -> Maker:
        if self._maker is None:
            plan, tokens = self._planned(), special_tokens(model, self.space)
            self._maker = Maker(plan.space, plan.data, tokens, plan.suite.spec.padding, self.options.share)
        return self._maker

    def _chosen(self, job: Job) -> Tensor:
        """The objectives of a step, ascending."""
        del job
        return self._every()

    def _every(self) -> Tensor:
        return torch.arange(len(self.space))

    def _shapes(self) -> dict[str, list[int]]:
        """The logits' shapes."""
        return {"all": [len(self.space)]}

    def _among(self, chosen: Tensor) -> Tensor:
        """Line 1: w over the chosen objectives, ``[n]``."""
        found: Tensor = self.state["logits.all"][chosen].softmax(0)
        return found

    def _move(self, chosen: Tensor, among: Tensor, answers: Tensor) -> None:
        """Line 5, for the objectives' logits."""
        gradient = among * (answers - among @ answers) if self.options.jacobian else answers
        self.state["logits.all"] = self.state["logits.all"].index_add(
            0, chosen.to(gradient.device), gradient, alpha=-self.options.rate
        )

    def _ends(self) -> Tensor:
        """(λ_e, λ_a)."""
        return self.state["logits.end"].softmax(0)

    def _shared_out(self, job: Job, chosen: Tensor, among: Tensor) -> Tensor:
        """The weights of the job's tasks, ``[T]``: λ_e, and λ_a w_k for the chosen objectives."""
        weights = torch.zeros(len(job.tasks), dtype=torch.float64, device=among.device)
        end, rest = self._ends()
        if job.target is not None:
            weights[job.target] = end
        weights[self._places(job)[chosen]] = among * (rest if job.target is not None else 1.0)
        return weights.to(job.initial_weights)

    def _places(self, job: Job) -> Tensor:
        """Where the objectives stand among the job's tasks, ``LongTensor[K]``."""
        order = {name: place for place, name in enumerate(job.tasks)}
        return torch.tensor([order[name] for name in self.space.names])

    def _forget(self, job: Job) -> None:
        count = len(self.space)
        self.state["sum"] = torch.zeros(count, dtype=torch.float64, device=job.initial_weights.device)
        self.state["count"] = torch.zeros((), dtype=torch.float64, device=job.initial_weights.device)
        self.state.setdefault("mean", self.state["sum"].clone())

    def _planned(self) -> Plan:
        if self._plan is None:
            raise SteelyardError(f"method {self.name!r} makes its objectives in prepare(), before training")
        return self._plan


class AANG(Tartan):
    """AANG, Algorithm 1: as META-TARTAN, over the space of objectives that four stages span.

    The logit of objective (i, t, r, o) is W_all[i, t, r, o] + W_I[i] + W_T[t] + W_R[r] + W_O[o], so that objectives
    learn from others with which they share a stage. By default every step has all objectives, because all
    meta-gradients come with it; the paper samples n of them, and w is then the softmax over the sample.
    """

    name = "aang"
    summary = "a space of objectives from the task's own data, weighted by what they are made of"
    paper = "Dery et al. 2023, AANG: Automating Auxiliary Learning"
    Options = AANGOptions

    options: AANGOptions

    @classmethod
    def details(cls) -> str:
        """The space for text, numbers and images."""
        kinds: tuple[Data, ...] = ("text", "numbers", "images")
        return "\n\n".join(f"the space for {kind}\n\n{Space(kind)}" for kind in kinds)

    def _chosen(self, job: Job) -> Tensor:
        n, space = self.options.sample, self.space
        if n is None or n >= len(space):
            return self._every()
        drawn = sample_objectives(space.legal, n, job.generator)
        chosen: Tensor = (space.points.unsqueeze(1) == drawn).all(2).any(1).nonzero()[:, 0]
        return chosen

    def _shapes(self) -> dict[str, list[int]]:
        shape = self.space.shape
        names = ("data", "transform", "representation", "output")
        return {"all": shape} | {name: [size] for name, size in zip(names, shape, strict=True)}

    def _among(self, chosen: Tensor) -> Tensor:
        return factored_weights([self.state[key] for key in self._keys()], self.space.points[chosen])

    def _move(self, chosen: Tensor, among: Tensor, answers: Tensor) -> None:
        points, shape = self.space.points[chosen].to(answers.device), self.space.shape
        if self.options.jacobian:
            gradients = factored_gradient(among, answers, points, shape)
        else:
            columns = points.unbind(1)
            whole = answers.new_zeros(shape).index_put(columns, answers, accumulate=True)
            parts = [answers.new_zeros(n).index_add(0, c, answers) for n, c in zip(shape, columns, strict=True)]
            gradients = (whole, *parts)
        for key, gradient in zip(self._keys(), gradients, strict=True):
            self.state[key] = self.state[key] - self.options.rate * gradient

    def _keys(self) -> list[str]:
        return [f"logits.{name}" for name in self._shapes()]
