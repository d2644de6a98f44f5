"""What the other modules share: inner products of gradients, wide numbers, checks on what is handed in."""

from collections.abc import Mapping

import torch
from torch import Tensor

Rows = Tensor | Mapping[str, Tensor]
"""One vector per task: `Tensor[T, ...]`, or `{parameter name: Tensor[T, *shape]}`."""

_CHUNK = 1 << 18


def wide(values: Tensor) -> Tensor:
    """Return `values` in float64, or in float32 on the one device that has no float64."""
    return values.to(torch.float32 if values.device.type == "mps" else torch.float64)


def narrow_type(*values: Tensor) -> torch.dtype:
    """Return the floating type in which a result made from `values` is handed back."""
    kind = values[0].dtype
    for value in values[1:]:
        kind = torch.promote_types(kind, value.dtype)
    return kind if kind.is_floating_point else torch.get_default_dtype()


def require_finite(values: Tensor, what: str) -> None:
    """Raise ValueError, naming the first culprit, if `values` holds a NaN or an infinity."""
    finite = torch.isfinite(values)
    if not bool(finite.all()):
        where = (~finite).nonzero()[0].tolist()
        raise ValueError(f"{what} holds {values[tuple(where)].item()} at index {where}")


def require_square(matrix: Tensor, what: str) -> None:
    """Raise ValueError unless `matrix` has the shape [n, n] with n ≥ 1."""
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.shape[0] == 0:
        raise ValueError(f"{what} must have the shape [n, n], not {list(matrix.shape)}")


def inner_products(left: Rows, right: Rows, preconditioner: Rows | None = None) -> Tensor:
    """Return ⟨left_t, P right_j⟩ for all pairs, summed in float64 without a wide copy of the rows.

    Args:
        left: `Tensor[S, ...]`, or a mapping from parameter name to such tensors.
        right: `Tensor[T, ...]`, or a mapping with the same names.
        preconditioner: the diagonal P, shaped as one row (`Tensor[...]` or a mapping of them).

    Returns:
        `Tensor[S, T]` in float64.

    Raises:
        ValueError: if names or row shapes differ. Fill a task's missing parameter with zeros.
        TypeError: if tensors and mappings are mixed.
    """
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        if preconditioner is not None and not isinstance(preconditioner, Tensor):
            raise TypeError("the preconditioner must be a tensor, as the gradients are")
        return _tensor_products(left, right, preconditioner, "gradients")
    if isinstance(left, Tensor) or isinstance(right, Tensor) or isinstance(preconditioner, Tensor):
        raise TypeError("give tensors for all arguments or mappings by parameter name for all")
    for other in (right,) if preconditioner is None else (right, preconditioner):
        if left.keys() != other.keys():
            odd = sorted(left.keys() ^ other.keys())
            raise ValueError(f"parameter names differ: {odd} on one side only; fill with zeros")
    if not left:
        raise ValueError("the mapping of gradients is empty")
    scale = preconditioner or {}
    parts = [_tensor_products(left[name], right[name], scale.get(name), name) for name in left]
    return torch.stack(parts).sum(0)


def _tensor_products(left: Tensor, right: Tensor, scale: Tensor | None, name: str) -> Tensor:
    """Return ⟨left_t, scale · right_j⟩ for two tensors of rows, in float64, chunk by chunk."""
    if left.ndim == 0 or right.ndim == 0 or left.shape[1:] != right.shape[1:]:
        raise ValueError(f"{name}: rows of shapes {list(left.shape)} and {list(right.shape)} do not match")
    if scale is not None and scale.shape != right.shape[1:]:
        raise ValueError(f"{name}: preconditioner {list(scale.shape)}, rows {list(right.shape[1:])}")
    left, right = left.reshape(len(left), -1), right.reshape(len(right), -1)
    total = wide(left.new_zeros(len(left), len(right)))
    for start in range(0, left.shape[1], _CHUNK):
        part = wide(right[:, start : start + _CHUNK])
        if scale is not None:
            part = part * wide(scale.reshape(-1)[start : start + _CHUNK])
        total = total + wide(left[:, start : start + _CHUNK]) @ part.T
    return total


def gram_matrix(gradients: Rows) -> Tensor:
    """Return the Gram matrix K[t, j] = ⟨g_t, g_j⟩ of all tasks' gradients.

    Computed in float64 whatever the gradients' type, so that gradients as small as 1e-30 in float32 do not
    vanish when they are squared. The gradients themselves are not copied.

    Args:
        gradients: `Tensor[T, ...]`, or `{parameter name: Tensor[T, *shape]}`.

    Returns:
        `Tensor[T, T]` in float64.
    """
    return inner_products(gradients, gradients)
