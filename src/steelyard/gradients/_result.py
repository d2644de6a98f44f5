"""Every task's gradient, by parameter; those of lookups stay sparse until a dense one is asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor

_CHUNK = 1 << 22  # numbers in a dense block of a sparse gradient, while inner products are taken
_RARE = 4  # ids that at most so many tasks share are paired one by one


class TaskGradients(Mapping[str, Tensor]):
    """A mapping from parameter names to Tensor[T, *shape].

    Reading an entry gives a dense tensor. Entries of parameters that no loss depends on are made of zeros when
    they are read, sparse ones (of embeddings) are made dense when they are read. The methods below work on what
    is stored, so that they cost what the gradients hold and not what they could hold.

    Args:
        values: what is stored, dense or sparse.
        shapes: the shape of every parameter in scope.
        like: a tensor [T] that says the number of tasks, the dtype and the device of zeros.
    """

    def __init__(self, values: Mapping[str, Tensor], shapes: Mapping[str, torch.Size], like: Tensor) -> None:
        self._values = dict(values)
        self._shapes = dict(shapes)
        self._like = like

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._values:
            return self._like.new_zeros((self._like.shape[0], *self._shapes[name]))
        value = self._values[name]
        return value.to_dense() if value.is_sparse else value

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)

    def stored(self) -> dict[str, Tensor]:
        """What is held, without making anything dense: sparse COO tensors for large lookups."""
        return dict(self._values)

    def part(self, names: Iterable[str]) -> TaskGradients:
        """The same gradients over some of the parameters."""
        chosen = [name for name in names if name in self._shapes]
        values = {name: self._values[name] for name in chosen if name in self._values}
        return TaskGradients(values, {name: self._shapes[name] for name in chosen}, self._like)

    def flatten(self) -> Tensor:
        """Tensor[T, P], parameters in the order of the scope; dense."""
        return torch.cat([_flat(self[name]) for name in self], dim=1)

    def gram(self) -> Tensor:
        """Tensor[T, T], inner products of the tasks' gradients."""
        total = torch.zeros_like(self._like).repeat(self._like.shape[0], 1)
        for value in self._values.values():
            total += gram_of(value)
        return total

    def norms(self) -> Tensor:
        """Tensor[T], the Euclidean norm of each task's gradient."""
        total = torch.zeros_like(self._like)
        for value in self._values.values():
            total += squares_of(value)
        return total.sqrt()

    def slopes(self, direction: Mapping[str, Tensor]) -> Tensor:
        """Tensor[T], inner products with a direction; parameters that it lacks count as zero."""
        for name, value in direction.items():
            if value.shape != self._shapes.get(name):
                known = f"the parameter {tuple(self._shapes[name])}" if name in self._shapes else "it is not in scope"
                raise ValueError(f"direction[{name!r}] has shape {tuple(value.shape)}, {known}")
        total = torch.zeros_like(self._like)
        for name, value in self._values.items():
            if name in direction:
                total += slopes_of(value, direction[name].to(value.dtype))
        return total

    def combine(self, weights: Tensor) -> dict[str, Tensor]:
        """Σ_t w_t ∇L_t as {name: Tensor[*shape]}: the gradient of the weighted loss, without a backward."""
        found = {}
        for name, shape in self._shapes.items():
            value = self._values.get(name)
            if value is None:
                found[name] = self._like.new_zeros(shape)
                continue
            scale = weights.to(value.dtype)
            if value.is_sparse:
                index, rows = value.indices(), value.values()
                out = rows.new_zeros(shape)
                found[name] = out.index_add_(0, index[1], rows * scale[index[0]].unsqueeze(1))
            else:
                found[name] = torch.tensordot(scale, value, dims=1)
        return found

    def plus(self, other: TaskGradients) -> TaskGradients:
        """The sum with the gradients of other rows over the same scope, sparse where both are."""
        values = dict(self._values)
        for name, value in other._values.items():
            values[name] = add(values.get(name), value)
        return TaskGradients(values, self._shapes, self._like)


def _flat(value: Tensor) -> Tensor:
    """[T, *shape] as [T, numbers], for a parameter that is a single number too."""
    return value.flatten(1) if value.dim() > 1 else value.unsqueeze(1)


def gram_of(value: Tensor) -> Tensor:
    """Inner products of one parameter's gradients, dense [T, *shape] or sparse [T, V, d]."""
    if not value.is_sparse:
        flat = _flat(value)
        return flat @ flat.t()
    rows, count = value.values(), value.shape[0]
    tasks, ids = value.indices()
    order = torch.argsort(ids, stable=True)
    tasks, ids, rows = tasks[order], ids[order], rows[order]
    _, where, sizes = torch.unique_consecutive(ids, return_inverse=True, return_counts=True)
    rare = sizes[where] <= _RARE
    return _rare_gram(tasks[rare], ids[rare], rows[rare], count) + _common_gram(
        tasks[~rare], ids[~rare], rows[~rare], count
    )


def _rare_gram(tasks: Tensor, ids: Tensor, rows: Tensor, count: int) -> Tensor:
    """Inner products of entries (sorted by id) that share their id with few others: each with its next ones."""
    total = rows.new_zeros(count * count)
    for shift in range(min(_RARE, len(ids))):
        here, there = slice(None, len(ids) - shift), slice(shift, None)
        same = (ids[here] == ids[there]).nonzero().squeeze(1)
        products = rows.index_select(0, same).mul_(rows.index_select(0, same + shift)).sum(1)
        total.index_add_(0, tasks[same] * count + tasks[same + shift], products)
        if shift:
            total.index_add_(0, tasks[same + shift] * count + tasks[same], products)
    return total.reshape(count, count)


def _common_gram(tasks: Tensor, ids: Tensor, rows: Tensor, count: int) -> Tensor:
    """Inner products of entries (sorted by id) that many tasks share: dense blocks of some ids at a time."""
    total, width = rows.new_zeros(count, count), rows.shape[-1]
    _, where = torch.unique_consecutive(ids, return_inverse=True)
    step = max(1, _CHUNK // (count * width))
    for start in range(0, int(where[-1]) + 1 if len(where) else 0, step):
        inside = ((where >= start) & (where < start + step)).nonzero().squeeze(1)
        block = rows.new_zeros(count, step, width)
        block[tasks[inside], where[inside] - start] = rows[inside]
        flat = block.flatten(1)
        total += flat @ flat.t()
    return total


def squares_of(value: Tensor) -> Tensor:
    """Tensor[T], squared norms of one parameter's gradients."""
    if not value.is_sparse:
        flat = _flat(value)
        squares: Tensor = torch.linalg.vecdot(flat, flat)
        return squares
    rows = value.values()
    return rows.new_zeros(value.shape[0]).index_add_(0, value.indices()[0], torch.linalg.vecdot(rows, rows))


def slopes_of(value: Tensor, direction: Tensor) -> Tensor:
    """Tensor[T], inner products of one parameter's gradients with a direction."""
    if not value.is_sparse:
        return _flat(value) @ direction.reshape(-1)
    index, rows = value.indices(), value.values()
    found = torch.linalg.vecdot(rows, direction[index[1]])
    return rows.new_zeros(value.shape[0]).index_add_(0, index[0], found)


def add(first: Tensor | None, second: Tensor) -> Tensor:
    """The sum of two uses of one parameter; sparse only while both are."""
    if first is None:
        return second
    if first.is_sparse and second.is_sparse:
        return (first + second).coalesce()
    if first.is_sparse:
        first, second = second, first
    return first + second
