"""Target-aware training in one file: read it in a sitting, change what you like.

Nothing here uses Steelyard; it is the idea alone. The target has fifty labelled digits. Three sources ask other
questions about other digits, and a fourth has shuffled labels. Each task's gradient on the shared layers is compared
with the target's. Sources that pull the target's way gain weight from the others; the target keeps its own, since
compared with itself it could only ever gain.

    python examples/one_file.py
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

STEPS, BATCH, EVERY, ETA = 300, 25, 5, 0.3

# Data: 8x8 images, and questions about them. The target's rows, the sources' rows and the test rows never meet.
torch.manual_seed(0)
images, digit = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
images, order = images.float() / 16, torch.randperm(len(images))
few, many, test = order[:50], order[50:1200], order[1200:]
questions = {
    "digit": (few, digit, 10),
    "odd": (many, digit % 2, 2),
    "large": (many, (digit >= 5).long(), 2),
    "loop": (many, torch.isin(digit, torch.tensor([0, 6, 8, 9])).long(), 2),
    "shuffled": (many, (digit % 2)[torch.randperm(len(digit))], 2),
}


def train(weighted: bool) -> tuple[float, torch.Tensor]:
    """Trains all tasks together; returns the target's test accuracy and the last weights."""
    torch.manual_seed(1)
    encoder = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
    heads = nn.ModuleList(nn.Linear(64, classes) for _, _, classes in questions.values())
    optimizer = torch.optim.AdamW([*encoder.parameters(), *heads.parameters()], lr=2e-3)
    weights = torch.full((len(questions),), 1 / len(questions))  # the target is task 0

    def losses() -> torch.Tensor:
        """Every task's loss on fresh rows of its own, [T]."""
        found = []
        for head, (pool, labels, _) in zip(heads, questions.values(), strict=True):
            rows = pool[torch.randint(len(pool), (BATCH,))]
            found.append(F.cross_entropy(head(encoder(images[rows])), labels[rows]))
        return torch.stack(found)

    def gradient(loss: torch.Tensor) -> torch.Tensor:
        """A loss's gradient on the shared layers, as one vector."""
        parts = torch.autograd.grad(loss, list(encoder.parameters()), retain_graph=True)
        return torch.cat([part.flatten() for part in parts])

    for step in range(STEPS):
        if weighted and step % EVERY == 0:
            # Among the sources: w_t ← w_t · exp(eta · cos(g_t, g_target)), and back to the sum that they had.
            goal, *others = (gradient(loss) for loss in losses())
            agreement = torch.stack([F.cosine_similarity(other, goal, dim=0) for other in others])
            weights[1:] = weights[1:].sum() * (weights[1:].log() + ETA * agreement).softmax(0)
        (losses() * weights).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    with torch.no_grad():
        right = heads[0](encoder(images[test])).argmax(1) == digit[test]
    return right.float().mean().item(), weights


if __name__ == "__main__":
    for weighted in (False, True):
        accuracy, weights = train(weighted)
        shown = "  ".join(f"{name} {weight:.2f}" for name, weight in zip(questions, weights.tolist(), strict=True))
        print(f"{'learned' if weighted else 'equal':8} weights: test accuracy {accuracy:.3f}   {shown}")
