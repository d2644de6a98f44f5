"""Your own training loop: the shared model, the gradient engine and one formula, in plain PyTorch.

Every ten steps the loop asks how well each source's gradient agrees with the target's, and moves the sources' weights.
The target keeps its own: compared with itself it could only ever gain. The data are scikit-learn's digits, as in
``steelyard demo``.

    python examples/own_loop.py
"""

import torch

from steelyard import Role, SharedModel, encoders, gradients
from steelyard import functional as S
from steelyard.data import suites
from steelyard.tasks import Batch, collate

torch.manual_seed(0)
suite = suites.demo(seed=0)
model = SharedModel(encoders.build("mlp", suite.spec, hidden=[64]), suite)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
target = model.tasks.index(suite.target)
sources = [model.tasks.index(name) for name in suite.sources]
weights = torch.full((len(suite),), 1 / len(suite))


def draw(size: int) -> Batch:
    """Some training rows of every task, as one batch: they go through the encoder in one call."""
    groups = []
    for task in suite.tasks.values():
        rows = task.rows[Role.TRAIN]
        groups.append((rows.inputs, torch.randperm(len(rows))[:size], [(task.name, rows.labels)]))
    return collate(groups, suite.spec.padding)


def agreement() -> torch.Tensor:
    """The cosine of each task's gradient with the target's, over the encoder, ``[T]``."""
    batch = draw(32)
    owner = torch.cat([torch.full((len(m.labels),), model.tasks.index(m.task)) for m in batch.parts[0].members])
    with gradients.record(model, owner, list(model.scope("shared"))) as tape:
        losses = model.losses(batch).means
    found = torch.cat([part.flatten(1) for part in tape.task_gradients(losses).values()], 1)
    return torch.cosine_similarity(found, found[target].unsqueeze(0))


if __name__ == "__main__":
    for step in range(200):
        if step % 10 == 0:
            moved = S.mirror_descent(weights[sources], -agreement()[sources], step=0.3, floor=0.02)
            weights[sources] = moved * weights[sources].sum()
        losses = model.losses(draw(16)).means
        (losses * weights).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    test = suite[suite.target].rows[Role.TEST]
    right = model.predict(test.inputs, suite.target).argmax(1) == test.labels
    print(f"test accuracy {right.float().mean():.3f}")
    print("weights", {name: round(weight, 3) for name, weight in zip(model.tasks, weights.tolist(), strict=True)})
