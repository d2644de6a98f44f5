"""Task weights in the Hugging Face Trainer: a target of 60 rows, a source that helps, and one with shuffled labels.

    python examples/hugging_face_trainer.py

The model is a small BERT with fresh parameters, so that nothing is fetched; take any other in its place.
"""

import tempfile

import torch
import transformers
from torch import nn

from steelyard.integrations import TargetFirst
from steelyard.integrations.transformers import TaskTrainer


class SharedBert(nn.Module):
    """One encoder, a head per task."""

    def __init__(self, tasks: list[str]) -> None:
        super().__init__()
        config = transformers.BertConfig(
            vocab_size=50, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64
        )
        self.encoder = transformers.BertModel(config)
        self.heads = nn.ModuleDict({task: nn.Linear(32, 2) for task in tasks})

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor, task: str) -> dict[str, torch.Tensor]:
        """A task's loss and logits."""
        logits = self.heads[task](self.encoder(input_ids).pooler_output)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def sentences(count: int, shuffled: bool = False) -> list[dict[str, torch.Tensor]]:
    """Ten tokens; the label says whether those below 25 are the more frequent."""
    ids = torch.randint(0, 50, (count, 10))
    labels = ((ids < 25).float().mean(1) > 0.5).long()
    labels = labels[torch.randperm(count)] if shuffled else labels
    return [{"input_ids": row, "labels": label} for row, label in zip(ids, labels, strict=True)]


if __name__ == "__main__":
    torch.manual_seed(0)
    data = {"mine": sentences(60), "helpful": sentences(600), "shuffled": sentences(600, shuffled=True)}
    model = SharedBert(list(data))
    weigher = TargetFirst(model.encoder.parameters(), "mine", ["helpful", "shuffled"], observe_every=2, update_every=10)
    with tempfile.TemporaryDirectory() as folder:
        args = transformers.TrainingArguments(
            folder, num_train_epochs=5, per_device_train_batch_size=16, learning_rate=1e-3, report_to=[],
            disable_tqdm=True, logging_strategy="no", save_strategy="no", use_cpu=True,
        )  # fmt: skip
        trainer = TaskTrainer(model, weigher, data, args=args)
        trainer.train()
        found = trainer.predict(sentences(300))
    print("weights", {task: round(weight, 2) for task, weight in weigher.weights.items()})
    print(f"accuracy {(found.predictions.argmax(1) == found.label_ids).mean():.2f}")
