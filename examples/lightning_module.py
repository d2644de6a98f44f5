"""Task weights in a LightningModule: fifty digits to learn, a source that helps, and one with shuffled labels.

python examples/lightning_module.py
"""

import warnings

import lightning
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from steelyard.integrations import TargetFirst, Together, collated
from steelyard.integrations.lightning import TaskModule

torch.manual_seed(0)
images, digits = (torch.as_tensor(array) for array in load_digits(return_X_y=True))
images, order = images.float() / 16, torch.randperm(len(digits))
few, many, test = order[:50], order[50:800], order[800:]
TASKS = {
    "digit": TensorDataset(images[few], digits[few]),
    "odd": TensorDataset(images[many], digits[many] % 2),
    "shuffled": TensorDataset(images[many], digits[many][torch.randperm(len(many))]),
}


class Digits(TaskModule):
    """One encoder, a head per task."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 64), nn.ReLU())
        self.heads = nn.ModuleDict({task: nn.Linear(64, 10) for task in TASKS})
        self.weigher = TargetFirst(self.encoder.parameters(), "digit", ["odd", "shuffled"], observe_every=2)

    def task_losses(self, batch: dict[str, list[torch.Tensor]]) -> dict[str, torch.Tensor]:
        """Each task's loss on its rows."""
        return {task: cross_entropy(self.heads[task](self.encoder(x)), y) for task, (x, y) in batch.items()}

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """As in any LightningModule."""
        return torch.optim.AdamW(self.parameters(), lr=2e-3)


if __name__ == "__main__":
    warnings.filterwarnings("ignore", module="lightning")  # it counts workers and cores
    together = Together(TASKS)
    loader = DataLoader(together, batch_size=32, shuffle=True, collate_fn=collated(together.tasks))
    module = Digits()
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    lightning.Trainer(max_epochs=15, accelerator="cpu", **quiet).fit(module, loader)
    right = module.heads["digit"](module.encoder(images[test])).argmax(1) == digits[test]
    print("weights", {task: round(weight, 2) for task, weight in module.weigher.weights.items()})
    print(f"test accuracy {right.float().mean():.3f}")
