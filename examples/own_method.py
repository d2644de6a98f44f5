"""A method of your own, and the checks that every method has to pass.

``loudest`` gives each task a weight in proportion to its share of the losses: what is learned worst counts most.

    python examples/own_method.py
"""

import torch
from pydantic import Field

from steelyard import fit, methods, testing
from steelyard.methods import Job, Method, Options


@methods.register
class Loudest(Method):
    """Weights in proportion to smoothed losses."""

    name = "loudest"
    summary = "a task counts for as much as its share of the losses"

    class Options(Options):
        """Options of `Loudest`."""

        memory: float = Field(default=0.9, ge=0, lt=1, description="how much of the old losses is kept")

    def start(self, job: Job) -> None:
        """The paradigm's weights, until there are losses."""
        super().start(job)
        self.state["losses"] = torch.zeros_like(self.weights)

    def step(self, job: Job) -> None:
        """L ← memory·L + (1 - memory)·ℓ, then w = L / ΣL."""
        losses = self.descend(job, job.batch(), self.weights)
        kept = self.options.memory * self.state["losses"] + (1 - self.options.memory) * losses
        self.state["losses"] = kept
        self.weights = kept / kept.sum()


if __name__ == "__main__":
    for check in testing.METHOD_CHECKS:
        check(Loudest)
        print(f"passed  {check.__name__}")
    run = fit(testing.suite(), testing.encoder(), Loudest(memory=0.5), epochs=5, progress=False)
    print("weights", {name: round(weight, 3) for name, weight in run.weights.items()})
