"""Task weights in a LightningModule."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import lightning
from torch import Tensor

from steelyard.integrations.weighers import Losses, Weigher

KEY = "steelyard_task_weights"


class TaskModule(lightning.LightningModule):  # type: ignore[misc]  # an optional library, without types here
    """A LightningModule whose training loss is a weighted sum of its tasks' losses.

    Say in `task_losses` what each task's loss on a batch is, and set ``self.weigher``. The weights are logged as
    ``weight/TASK``, and are kept in checkpoints.
    """

    weigher: Weigher

    @abstractmethod
    def task_losses(self, batch: Any) -> Losses:
        """Each task's mean loss on its rows of the batch ``{task: rows}``."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Σ w_t L_t; a training step of your own may call ``self.weigher.total(losses)`` itself."""
        del batch_idx
        losses = self.task_losses(batch)
        total = self.weigher.total(losses)
        self.log_dict({f"loss/{task}": loss.detach() for task, loss in losses.items()}, batch_size=1)
        self.log_dict({f"weight/{task}": weight for task, weight in self.weigher.weights.items()}, batch_size=1)
        return total

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Lets the weigher look at held-out rows, once the optimiser has stepped."""
        super().on_train_batch_end(outputs, batch, batch_idx)
        if (batch_idx + 1) % self.trainer.accumulate_grad_batches == 0:
            self.weigher.after_step(self._held_out)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keeps the weigher's state."""
        super().on_save_checkpoint(checkpoint)
        checkpoint[KEY] = self.weigher.state_dict()

    def on_load_checkpoint(self, checkpoint: Mapping[str, Any]) -> None:
        """Takes it back."""
        super().on_load_checkpoint(checkpoint)
        if KEY in checkpoint:
            self.weigher.load_state_dict(checkpoint[KEY])

    def _held_out(self, batch: Any) -> Losses:
        return self.task_losses(self.transfer_batch_to_device(batch, self.device, 0))
