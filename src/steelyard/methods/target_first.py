"""Target first: sources give up what works against the target, as in TorchJD's PCD."""

from __future__ import annotations

from torch import Tensor

from steelyard.errors import SteelyardError
from steelyard.functional import target_first_weights
from steelyard.methods.combination import Combination
from steelyard.methods.job import Job


class TargetFirst(Combination):
    """The target never loses to first order: a source's gradient loses its part against the target's.

    g_t' = g_t − min(0, ⟨g_t, g_0⟩)/‖g_0‖² · g_0 for every source t; then their mean with g_0.
    """

    name = "target_first"
    summary = "sources' gradients give up what works against the target's"
    needs_target = True

    def start(self, job: Job) -> None:
        """The target has to be among the tasks."""
        if job.target is None:
            raise SteelyardError(
                "method 'target_first' protects the target's gradient: train it jointly, not by pre-training"
            )
        super().start(job)

    def combine(self, gram: Tensor, tasks: Tensor, job: Job) -> Tensor:
        """In closed form the target's weight grows; without a gradient of the target there is nothing to protect."""
        places: list[int] = tasks.tolist()
        if job.target not in places:
            return gram.new_full((len(gram),), 1 / len(gram))
        return target_first_weights(gram, places.index(job.target))
