"""The units of a regression's labels, so that the size of a loss does not depend on them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Units:
    """What stands in the rows is ``(label - mean) / deviation``, one pair per output.

    A price in cents would else have ten thousand times the loss of the same price in euros, and drown every
    other task.
    """

    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", tuple(self.mean))
        object.__setattr__(self, "deviation", tuple(self.deviation))

    @classmethod
    def of(cls, labels: Tensor) -> Units:
        """Of labels ``[n]`` or ``[n, K]``, where NaN is a missing one; what never varies has deviation 1."""
        columns = labels.double().view(len(labels), -1).T
        given = [column[~column.isnan()] for column in columns]
        mean = tuple(float(column.mean()) if len(column) else 0.0 for column in given)
        deviation = tuple(float(column.std(correction=0)) or 1.0 if len(column) else 1.0 for column in given)
        return cls(mean, deviation)

    def standard(self, values: Tensor) -> Tensor:
        """From own units: ``[n]`` or ``[n, K]``."""
        mean, deviation = self._pair(values)
        return (values - mean) / deviation

    def own(self, values: Tensor) -> Tensor:
        """Back to own units: ``[n]`` or ``[n, K]``."""
        mean, deviation = self._pair(values)
        return values * deviation + mean

    def _pair(self, values: Tensor) -> tuple[Tensor, Tensor]:
        pair = values.new_tensor([self.mean, self.deviation])
        return (pair[0, 0], pair[1, 0]) if values.dim() == 1 else (pair[0], pair[1])
