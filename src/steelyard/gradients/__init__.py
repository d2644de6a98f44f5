"""Every task's gradient, slope and Gram matrix for about the price of one step.

The rows of all tasks go through a network together. One backward brings every row's gradient to the output of every
layer; from there the gradient of each task is the joint gradient's own arithmetic in T pieces, and the slope of
each task along a fixed direction is one more forward of the layer. What has no rule takes an exact path.

    with gradients.record(module, rows) as tape:  # rows: LongTensor[N], the task of each row
        losses = ...  # Tensor[T], from one forward of the module on N rows
    tape.slopes(losses, direction)  # Tensor[T]
"""

from steelyard.gradients import _conv, _embedding, _linear, _norms, _recompute  # noqa: F401
from steelyard.gradients._curvature import (
    HessianProduct,
    Solution,
    conjugate_gradients,
    forward_slopes,
    hessian_vector_product,
)
from steelyard.gradients._errors import GradientError, RowsMixError, UnsupportedGraphError
from steelyard.gradients._exact import exact_task_gradients
from steelyard.gradients._groups import Groups
from steelyard.gradients._layers import LayerTraces
from steelyard.gradients._products import Metric, inner_products
from steelyard.gradients._pure import pure
from steelyard.gradients._record import record
from steelyard.gradients._result import TaskGradients
from steelyard.gradients._rules import Bound, Rule, register
from steelyard.gradients._shared import SharedTape
from steelyard.gradients._tape import Tape

__all__ = [
    "Bound",
    "GradientError",
    "Groups",
    "HessianProduct",
    "LayerTraces",
    "Metric",
    "RowsMixError",
    "Rule",
    "SharedTape",
    "Solution",
    "Tape",
    "TaskGradients",
    "UnsupportedGraphError",
    "conjugate_gradients",
    "exact_task_gradients",
    "forward_slopes",
    "hessian_vector_product",
    "inner_products",
    "pure",
    "record",
    "register",
]
