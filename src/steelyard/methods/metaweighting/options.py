"""What a user can say about MetaWeighting."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from steelyard.methods import base

PUBLISHED: dict[str, Any] = {"rate": True, "bounds": "free", "form": "gradient_descent"}
"""The paper's own update: w ← w - α·d_c with η inside d_c, and nothing that bounds w."""


class MetaWeightingOptions(base.Options):
    """Options of `MetaWeighting`."""

    ratio: float = Field(default=0.1, gt=0, lt=1, description="ρ: the share of a task's training rows kept as query")
    alpha: float = Field(default=0.1, gt=0, description="α: the step of w (paper: 0.1 sentiment, 0.5 topics)")
    form: Literal["gradient_descent", "optimizer"] = Field(
        default="gradient_descent", description="D for plain gradient descent (paper), or for the step that Adam takes"
    )
    rate: bool = Field(default=False, description="multiply D by the learning rate, as published; w then hardly moves")
    bounds: Literal["renormalised", "clamped", "free"] = Field(
        default="renormalised", description="w is clamped at 0 and rescaled to Σw = T, clamped alone, or left (paper)"
    )
    scope: str = Field(default="all", description="parameters of D: all, shared, or a regular expression")
    query_size: int | None = Field(default=None, ge=1, description="query rows of each task; else the batch size")
    gradient_memory: Literal["whole", "bounded"] = Field(
        default="whole", description="keep T gradients of the model's size, or form them a layer at a time"
    )
    every: int = Field(default=1, ge=1, description="steps between updates of w")
    resplit: int | None = Field(default=None, ge=1, description="epochs after which support and query are drawn anew")
    as_published: bool = Field(default=False, description="the paper's own choices, where none is given here")

    @model_validator(mode="before")
    @classmethod
    def _published(cls, given: Any) -> Any:
        """Fills in the paper's choices."""
        return PUBLISHED | given if isinstance(given, dict) and given.get("as_published") else given
