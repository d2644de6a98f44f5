"""Any weighting of losses, any combination of gradients, in a loop of your own: three tasks on scikit-learn's digits.

python examples/weights_in_your_loop.py
python examples/weights_in_your_loop.py uncertainty
"""

import sys

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from steelyard.methods import OwnLoop

torch.manual_seed(0)
images, digits = (torch.as_tensor(array) for array in load_digits(return_X_y=True))
images = images.float() / 16
TASKS = {"digit": digits, "odd": digits % 2, "round": torch.isin(digits, torch.tensor([0, 6, 8, 9])).long()}

order = torch.randperm(len(images))
train, test = order[:1000], order[1000:]
encoder = nn.Sequential(nn.Linear(64, 64), nn.ReLU())
heads = nn.ModuleDict({name: nn.Linear(64, int(labels.max()) + 1) for name, labels in TASKS.items()})


def losses(rows: Tensor) -> Tensor:
    """Each task's loss on some rows, ``[T]``."""
    features = encoder(images[rows])
    return torch.stack([cross_entropy(heads[name](features), labels[rows]) for name, labels in TASKS.items()])


if __name__ == "__main__":
    method = sys.argv[1] if len(sys.argv) > 1 else "bandit+upgrad"
    weighing = OwnLoop(method, list(TASKS), encoder.parameters())
    parameters = [*encoder.parameters(), *heads.parameters(), *weighing.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.2)
    for step in range(300):
        weighing.backward(losses(train[torch.randint(len(train), (64,))]))  # in place of losses.mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 100 == 99:
            value = ", ".join(f"{name} {w:.2f}" for name, w in zip(TASKS, weighing.weights.tolist(), strict=True))
            print(f"step {step + 1}: weights {value}")
            weighing.after_epoch()
    with torch.no_grad():
        features = encoder(images[test])
        for name, labels in TASKS.items():
            right = heads[name](features).argmax(1) == labels[test]
            print(f"{name}: test accuracy {right.float().mean():.3f}")
