"""Task weights in the Hugging Face Trainer, with a data set for each task."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from steelyard.errors import SteelyardError
from steelyard.integrations.rows import Together, collated
from steelyard.integrations.weighers import QueryFirst, Weigher

FILE = "task_weights.pt"


class TaskTrainer(transformers.Trainer):  # type: ignore[misc]  # an optional library, without types here
    """A Trainer with several training sets, whose loss is a weighted sum of their losses.

    A step has ``per_device_train_batch_size`` rows of each task. The model is called with ``task=NAME`` if its forward
    takes that, and has to give a ``loss``; override `task_loss` where that is not how yours works. The weights stand
    in every log line as ``weight_TASK``, and are kept in checkpoints.

    Args:
        model: The model.
        weigher: Who weighs; its first task is the one that is evaluated.
        train_dataset: A data set for each task, whose rows the collator can take.
        **others: Whatever `transformers.Trainer` takes.
    """

    data_collator: Any

    def __init__(self, model: nn.Module, weigher: Weigher, train_dataset: Mapping[str, Any], **others: Any) -> None:
        missing = set(weigher.tasks) ^ set(train_dataset)
        if missing:
            raise SteelyardError(
                f"the weigher's tasks are {', '.join(weigher.tasks)}, the data sets {', '.join(train_dataset)}: "
                f"{min(missing)!r} is not in both"
            )
        args = others.get("args")
        if isinstance(weigher, QueryFirst) and args is not None and args.gradient_accumulation_steps > 1:
            raise SteelyardError("QueryFirst needs a step's gradient at once: set gradient_accumulation_steps = 1")
        super().__init__(model=model, train_dataset=Together(train_dataset), **others)
        self.weigher = weigher
        self._takes_task = "task" in inspect.signature(model.forward).parameters
        self._one_task: Any = self.data_collator
        self._collated = collated(tuple(train_dataset), self._one_task)
        self.add_callback(_AfterStep(self))

    def task_loss(self, model: nn.Module, task: str, inputs: Mapping[str, Any]) -> tuple[Tensor, Any]:
        """A task's mean loss on its rows, and what the model gave."""
        outputs = model(**inputs, **({"task": task} if self._takes_task else {}))
        return outputs["loss"], outputs

    def task_losses(self, model: nn.Module, batch: Mapping[str, Any]) -> dict[str, Tensor]:
        """Every task's loss on a batch ``{task: inputs}``."""
        return {task: self.task_loss(model, task, inputs)[0] for task, inputs in batch.items()}

    def compute_loss(self, model: nn.Module, inputs: Any, return_outputs: bool = False, **others: Any) -> Any:
        """In training Σ w_t L_t; in evaluation the first task's loss."""
        del others
        if set(inputs) == set(self.weigher.tasks):
            return self.weigher.total(self.task_losses(model, inputs))
        loss, outputs = self.task_loss(model, self.weigher.tasks[0], inputs)
        return (loss, outputs) if return_outputs else loss

    def get_train_dataloader(self) -> Any:
        """Batches of rows of every task."""
        self.data_collator = self._collated
        try:
            return super().get_train_dataloader()
        finally:
            self.data_collator = self._one_task

    def log(self, logs: dict[str, float], *args: Any, **others: Any) -> None:
        """Adds the weights to the lines of training."""
        if "loss" in logs:
            logs |= {f"weight_{task}": weight for task, weight in self.weigher.weights.items()}
        super().log(logs, *args, **others)

    def after_step(self) -> None:
        """Lets the weigher look at held-out rows."""
        self.weigher.after_step(lambda batch: self.task_losses(self.model, self._prepare_inputs(batch)))

    def _save_checkpoint(self, model: nn.Module, trial: Any, **others: Any) -> None:
        super()._save_checkpoint(model, trial, **others)
        folder = Path(self._get_output_dir(trial)) / f"checkpoint-{self.state.global_step}"
        torch.save(self.weigher.state_dict(), folder / FILE)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, *args: Any, **others: Any) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, *args, **others)
        file = Path(resume_from_checkpoint) / FILE
        if file.exists():
            self.weigher.load_state_dict(torch.load(file, weights_only=True))


class _AfterStep(transformers.TrainerCallback):  # type: ignore[misc]
    """Calls the trainer after each of its optimiser's steps."""

    def __init__(self, trainer: TaskTrainer) -> None:
        self._trainer = trainer

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """After the optimiser's step."""
        self._trainer.after_step()
