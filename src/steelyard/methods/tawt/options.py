"""What a user can say about TAWT."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from steelyard.methods import base

PUBLISHED: dict[str, Any] = {
    "signal": "cosine",
    "against": "itself",
    "share": "paper",
    "evidence": "latest",
    "floor": 0.0,
}
"""The paper's joint form: one simplex over all tasks, the target compared with itself, one probe at a time."""

GRADIENTS = frozenset({
    "observe", "evidence", "memory", "against", "probe_size", "probe_every", "update_every", "scope", "c", "eta",
    "head_steps", "head_rate", "damping", "iterations", "level", "groups", "fresh",
})  # fmt: skip
"""Options that say how gradients are looked at."""

PUBLISHED_EXAMPLES: dict[str, Any] = {"signal": "dot", "c": 5.0, "share": "constant", "fresh": 1.0, "floor": 0.0}
"""The paper's weights per example: H⁻¹ ≈ 5·I."""


class TAWTOptions(base.Options):
    """Options of `TAWT`."""

    signal: Literal["answers", "cosine", "dot", "preconditioned", "hypergradient"] = Field(
        default="answers",
        description="what tells sources apart: once, before training, what their answers say of the target's labels; "
        "or how their gradients agree with the target's, as a cosine (the default where another option speaks of "
        "gradients), a dot product, a cosine in the metric of the optimiser (Adam, AdamW, SGD), or by Eq. 2.7",
    )
    observe: Literal["probe", "step"] = Field(
        default="probe",
        description="look at rows drawn for it, or at the gradients that every training step is made of",
    )
    evidence: Literal["accumulated", "latest"] = Field(
        default="accumulated", description="all probes so far with their standard error, or the newest alone (paper)"
    )
    strength: float = Field(default=1.5, ge=0, description="accumulated: log-weight per standard deviation of sources")
    memory: float = Field(
        default=1.0, gt=0, le=1, description="accumulated: what is kept of old probes at each new one"
    )
    share: Annotated[float, Field(ge=0, le=1)] | Literal["constant", "ramp", "learned", "paper"] = Field(
        default="constant",
        description="the target's part of the weights: a number, the paradigm's, growing, learned on dev_meta, "
        "or on one simplex with the sources (paper)",
    )
    growth: float = Field(default=1.0, ge=0, description="share = ramp: the target's log-odds gain this in each epoch")
    against: Literal["independent", "itself"] = Field(
        default="independent", description="which batch of the target its own gradient is compared with"
    )
    role: Literal["train", "dev_meta"] = Field(default="train", description="which rows of the target are probed")
    dev_from: Literal["dev_select", "train"] = Field(
        default="dev_select", description="where dev_meta is carved from, if it is needed and not given"
    )
    dev_fraction: float = Field(default=0.5, gt=0, lt=1, description="how much of dev_from becomes dev_meta")
    probe_size: int = Field(default=64, ge=1, description="rows of each task in a probe")
    probe_every: int | None = Field(default=None, ge=1, description="steps between probes; else one per update")
    update_every: int | None = Field(default=None, ge=1, description="steps between updates; else one per epoch")
    scope: str = Field(default="shared", description="which parameters are φ: shared, or a regular expression")
    c: float = Field(default=1.0, gt=0, description="scale of the signal")
    eta: float = Field(default=1.0, gt=0, description="step of mirror descent")
    floor: float = Field(default=0.05, ge=0, lt=1, description="smallest weight, as a part of an even one")
    targets: dict[str, Annotated[float, Field(gt=0)]] | None = Field(
        default=None, description="several targets and how much each counts; else the suite's"
    )
    weights: dict[str, Annotated[float, Field(ge=0)]] | None = Field(
        default=None, description="train with these weights throughout (a control: the final ones, held fixed)"
    )
    head_steps: int | None = Field(
        default=None, ge=0, description="steps on the target's head alone before a probe; else 20 in pre-training"
    )
    head_rate: float = Field(default=0.05, gt=0, description="their learning rate")
    damping: float = Field(default=0.1, ge=0, description="hypergradient: added to H, relative to its curvature")
    iterations: int = Field(default=10, ge=1, description="hypergradient: most products of conjugate gradients")
    level: Literal["task", "group", "example"] = Field(
        default="task", description="what has a weight: a source, a group of its rows, or each of its rows"
    )
    groups: dict[str, list[int]] | None = Field(
        default=None, description="level = group: the group of each training row, by source; else its label"
    )
    fresh: float = Field(
        default=0.2, gt=0, le=1, description="group and example: the part of the rows probed at each update"
    )
    as_published: bool = Field(default=False, description="the paper's own choices, where none is given here")

    @model_validator(mode="before")
    @classmethod
    def _filled_in(cls, given: Any) -> Any:
        """The paper's choices where they are asked for; the cosine where something is said of gradients."""
        if not isinstance(given, dict):
            return given
        if given.get("as_published"):
            examples = PUBLISHED_EXAMPLES if given.get("level", "task") != "task" else {}
            return {**PUBLISHED, **examples, **given}
        speaks = any(given[name] != cls.model_fields[name].default for name in given.keys() & GRADIENTS)
        return {"signal": "cosine", **given} if speaks or given.get("share") == "paper" else given

    @model_validator(mode="after")
    def _agree(self) -> TAWTOptions:
        """Options that contradict each other."""
        if self.signal == "answers" and (self.level != "task" or self.share == "paper" or self.observe == "step"):
            raise ValueError(
                "signal = 'answers' looks once, before training, at sources apart from the target: level is 'task', "
                "share not 'paper' and observe not 'step'"
            )
        if self.level != "task" and self.share == "paper":
            raise ValueError(
                "share = 'paper' has one weight per task; with level = 'group' or 'example' choose another"
            )
        if self.observe == "step" and (self.level != "task" or self.share == "paper" or self.signal == "hypergradient"):
            raise ValueError(
                "observe = 'step' sees the sources' gradients in the steps: level is 'task', share not 'paper', and "
                "signal not 'hypergradient'"
            )
        if self.groups is not None and self.level != "group":
            raise ValueError("groups are for level = 'group'")
        return self

    @property
    def needs_dev_meta(self) -> bool:
        """Whether the target needs rows that are neither trained on nor chosen on."""
        return self.role == "dev_meta" or self.share == "learned"
