"""Objectives made of a task's own data: data, transform, representation, output, and the space that they span.

An objective is a task: its rows are the data's, corrupted anew in every step; its labels are made with them. The stages
are small classes, and a new primitive is one more:

    @objectives.register
    class Shuffle(objectives.Transform):
        name, about = "shuffle", "tokens in another order"

        def __call__(self, draft, tokens, generator): ...
"""

from steelyard.model import HEADS
from steelyard.objectives import plain, text  # noqa: F401  their primitives register themselves
from steelyard.objectives.decoder import Decoder
from steelyard.objectives.draft import Draft
from steelyard.objectives.making import Maker, data_of, merged, objective_tasks
from steelyard.objectives.outputs import TokenTransform
from steelyard.objectives.space import DEFAULTS, NAMED, Objective, Point, Space, points, stages_of
from steelyard.objectives.stages import (
    END_TASK,
    TASK,
    Data,
    Output,
    Question,
    Representation,
    Transform,
    primitives,
    register,
)
from steelyard.objectives.warming import warm_up

TOKENS = "token-transform"
"""The head of objectives that ask for tokens."""

HEADS.setdefault(TOKENS, TokenTransform)

__all__ = [
    "DEFAULTS",
    "END_TASK",
    "NAMED",
    "TASK",
    "TOKENS",
    "Data",
    "Decoder",
    "Draft",
    "Maker",
    "Objective",
    "Output",
    "Point",
    "Question",
    "Representation",
    "Space",
    "TokenTransform",
    "Transform",
    "data_of",
    "merged",
    "objective_tasks",
    "points",
    "primitives",
    "register",
    "stages_of",
    "warm_up",
]
