"""What a user can say about META-TARTAN and AANG."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from steelyard.methods import base

PUBLISHED: dict[str, Any] = {"signal": "product"}
"""The paper: -β⟨∇L_k, ∇L_E^val⟩ as it is."""

RELEASED: dict[str, Any] = {"signal": "cosine", "jacobian": False}
"""The authors' code: the cosine, straight to the logits."""


class TartanOptions(base.Options):
    """Options of `Tartan`."""

    objectives: list[str] = Field(
        default=[],
        description="TAPT (the default for text), DAPT, GPT-style, … or data/transform/representation/output",
    )
    data: dict[str, str] = Field(
        default={}, description="which source is which data: {in-domain = 'abstracts'}; 'task' is the target's"
    )
    auxiliary_rows: int = Field(default=96, ge=1, description="rows of all objectives together in a step")
    share: float = Field(default=0.15, gt=0, le=1, description="the share of a row's places that is asked about")
    copies: bool = Field(default=False, description="a decoder per token objective (paper), instead of the embeddings")
    static: bool = Field(default=False, description="weights stay even: static multi-tasking")
    signal: Literal["scaled", "product", "cosine"] = Field(
        default="scaled",
        description="⟨∇L_k, ∇L_E^val⟩ over its running size; times the learning rate (published); cosine (released)",
    )
    jacobian: bool = Field(default=True, description="the softmax's own gradient; without it the signal moves logits")
    rate: float = Field(default=0.1, ge=0, description="the learning rate of the objectives' logits (paper: 1 or 0.1)")
    end_rate: float = Field(default=0.1, ge=0, description="of the two logits of λ_e (paper: 0.1 or 0.01)")
    every: int = Field(default=1, ge=1, description="steps between meta-gradients")
    meta_rows: int = Field(default=32, ge=1, description="held-out rows of the target in a meta-gradient")
    head_every: int = Field(default=10, ge=1, description="meta-gradients between fits of the dev head")
    head_rows: int = Field(default=32, ge=1, description="training rows that the dev head is fitted on")
    head_steps: int = Field(default=10, ge=0, description="steps of AdamW in a fit")
    head_rate: float = Field(default=1e-2, gt=0, description="their learning rate")
    dev_fraction: float = Field(default=0.5, gt=0, lt=1, description="dev_meta's share of dev, if it has to be cut")
    train_fraction: float = Field(default=0.2, gt=0, lt=1, description="the same of train, where there is no dev")
    as_published: bool = Field(default=False, description="the paper's own choices, where none is given here")
    as_released: bool = Field(default=False, description="those of the authors' code")

    @model_validator(mode="before")
    @classmethod
    def _presets(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        preset = PUBLISHED if given.get("as_published") else {}
        return preset | (RELEASED if given.get("as_released") else {}) | given


class AANGOptions(TartanOptions):
    """Options of `AANG`."""

    objectives: list[str] = Field(default=[], description="these points alone; by default all that the stages span")
    inputs: list[str] = Field(default=["task"], description="the data: task, in-domain, out-of-domain, neural-lm")
    transforms: list[str] | None = Field(default=None, description="text: none, replace, mask, bert; also noise")
    representations: list[str] | None = Field(
        default=None, description="text: bidirectional, left-to-right, right-to-left, random-factorised"
    )
    outputs: list[str] | None = Field(
        default=None, description="text: denoise, end-task; also next-token, real-synthetic, tf-idf"
    )
    sample: int | None = Field(default=None, ge=1, description="objectives in a step (paper: 3 or 6); by default all")
