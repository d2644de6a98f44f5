"""TAWT in a loop of your own: plain PyTorch, your model, your optimiser, your steps.

The target is to read a digit from 50 labelled images. One source says which pair of digits, one says nonsense.

    python examples/tawt_in_your_loop.py
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

from steelyard.methods.tawt import TargetWeights

torch.manual_seed(0)
digits = load_digits()
order = torch.randperm(len(digits.target))
images = torch.tensor(digits.data, dtype=torch.float32)[order] / 16
labels = torch.tensor(digits.target)[order]
train = {
    "digit": (images[:50], labels[:50]),
    "pairs": (images[50:650], labels[50:650] // 2),
    "nonsense": (images[50:650], torch.randint(10, (600,))),
}
dev, test = slice(650, 750), slice(750, None)

encoder = nn.Sequential(nn.Linear(64, 64), nn.ReLU())
model = nn.ModuleDict({"encoder": encoder, **{task: nn.Linear(64, 10) for task in train}})
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
weights = TargetWeights(encoder.parameters(), sources=2)


def loss(task: str, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A task's loss on some rows."""
    return F.cross_entropy(model[task](encoder(x)), y)


if __name__ == "__main__":
    for _ in range(20):
        for step in range(20):
            rows = {task: torch.randint(len(x), (16,)) for task, (x, _) in train.items()}
            target, *sources = (loss(task, x[rows[task]], y[rows[task]]) for task, (x, y) in train.items())
            if step % 4 == 0:  # against rows that are not trained on
                weights.observe(loss("digit", images[dev], labels[dev]), torch.stack(sources))
            optimizer.zero_grad()
            (0.5 * target + 0.5 * weights.mixture @ torch.stack(sources)).backward()
            optimizer.step()
        weights.update()
    right = model["digit"](encoder(images[test])).argmax(1) == labels[test]
    print(f"test accuracy {right.float().mean():.3f}")
    print("weights", {task: round(w, 3) for task, w in zip(list(train)[1:], weights.mixture.tolist(), strict=True)})
