"""αVIL in a loop of your own: plain PyTorch, your model, your optimiser, your steps.

The target is to read a digit from 50 labelled images. One source says whether a digit has a loop, one says nonsense.

    python examples/alphavil_in_your_loop.py
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

from steelyard.methods.alphavil import TaskUpdates

torch.manual_seed(0)
digits = load_digits()
order = torch.randperm(len(digits.target))
images = torch.tensor(digits.data, dtype=torch.float32)[order] / 16
labels = torch.tensor(digits.target)[order]
loops = torch.isin(labels, torch.tensor([0, 6, 8, 9])).long()
train = {
    "digit": (images[:50], labels[:50]),
    "loops": (images[50:650], loops[50:650]),
    "nonsense": (images[50:650], torch.randint(2, (600,))),
}
dev, choose, test = slice(650, 750), slice(750, 850), slice(850, None)

encoder = nn.Sequential(nn.Linear(64, 64), nn.ReLU())
model = nn.ModuleDict({"encoder": encoder, **{task: nn.Linear(64, 10) for task in train}})
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
updates = TaskUpdates(model, optimizer, list(train))


def loss(task: str, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A task's loss on some rows."""
    return F.cross_entropy(model[task](model["encoder"](x)), y)


def accuracy(part: slice) -> float:
    """The target's accuracy."""
    return (model["digit"](model["encoder"](images[part])).argmax(1) == labels[part]).float().mean().item()


if __name__ == "__main__":
    best = (0.0, 0.0)
    for _ in range(60):
        for task, (x, y) in train.items():
            with updates.alone(task):
                for rows in torch.randint(len(x), (10, 32)):
                    optimizer.zero_grad()
                    loss(task, x[rows], y[rows]).backward()
                    optimizer.step()
        updates.merge(lambda: loss("digit", images[dev], labels[dev]))
        best = max(best, (accuracy(choose), accuracy(test)))  # other rows choose the model than tune α
    print(f"test accuracy {best[1]:.3f}")
    print("weights", {task: round(weight, 3) for task, weight in updates.weights.items()})
