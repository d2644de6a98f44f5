"""MetaWeighting in a loop of your own: three tasks on scikit-learn's digits, in plain PyTorch.

A fifth of each task's rows is never trained on; after every step the weights answer to the losses there.

    python examples/query_weights.py
"""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from steelyard.methods.metaweighting import QueryWeights

torch.manual_seed(0)
images, digits = (torch.as_tensor(array) for array in load_digits(return_X_y=True))
images = images.float() / 16
TASKS = {"digit": digits, "odd": digits % 2, "round": torch.isin(digits, torch.tensor([0, 6, 8, 9])).long()}

order = torch.randperm(len(images))
query, support, test = order[:200], order[200:1000], order[1000:]
encoder = nn.Sequential(nn.Linear(64, 64), nn.ReLU())
heads = nn.ModuleDict({name: nn.Linear(64, int(labels.max()) + 1) for name, labels in TASKS.items()})
parameters = [*encoder.parameters(), *heads.parameters()]
optimizer = torch.optim.SGD(parameters, lr=0.2)
weights = QueryWeights(parameters, tasks=len(TASKS), alpha=0.1)


def losses(rows: Tensor) -> Tensor:
    """Each task's loss on some rows, ``[T]``."""
    features = encoder(images[rows])
    return torch.stack([cross_entropy(heads[name](features), labels[rows]) for name, labels in TASKS.items()])


def draw(rows: Tensor, size: int) -> Tensor:
    """Some of the rows."""
    return rows[torch.randint(len(rows), (size,))]


if __name__ == "__main__":
    for step in range(300):
        found = losses(draw(support, 64))
        weights.support(found)  # before the step
        (weights.value * found).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        moved = weights.query(losses(draw(query, 32)))  # after it
        if step % 100 == 99:
            value = ", ".join(f"{name} {w:.2f}" for name, w in zip(TASKS, weights.value.tolist(), strict=True))
            print(f"step {step + 1}: weights {value}; the last one moved by {moved:.1e}")
    with torch.no_grad():
        features = encoder(images[test])
        for name, labels in TASKS.items():
            right = heads[name](features).argmax(1) == labels[test]
            print(f"{name}: test accuracy {right.float().mean():.3f}")
