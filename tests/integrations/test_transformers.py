"""The real Trainer with task weights."""

import pytest
import torch
from torch import nn

from steelyard import SteelyardError
from steelyard.integrations import QueryFirst, TargetFirst, Together, Uniform, collated

transformers = pytest.importorskip("transformers", reason="the Trainer is not here: install the extra text")

from steelyard.integrations.transformers import TaskTrainer  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


class Shared(nn.Module):
    """A small BERT with a head per task."""

    def __init__(self, *tasks):
        super().__init__()
        config = transformers.BertConfig(
            vocab_size=20, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )  # fmt: skip
        self.encoder = transformers.BertModel(config)
        self.heads = nn.ModuleDict({task: nn.Linear(16, 2) for task in tasks})

    def forward(self, input_ids, labels, task="mine"):
        logits = self.heads[task](self.encoder(input_ids).pooler_output)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def rows(count, seed, flip=False):
    """Which of two tokens comes more often? Or, flipped, a coin."""
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(2, 20, (count, 6), generator=draw)
    labels = torch.randint(0, 2, (count,), generator=draw)
    ids[:, :3] = labels[:, None]
    labels = torch.randint(0, 2, (count,), generator=draw) if flip else labels
    return [{"input_ids": i, "labels": y} for i, y in zip(ids, labels, strict=True)]


DATA = {"mine": rows(16, 0), "near": rows(64, 1), "coin": rows(64, 2, flip=True)}


def arguments(folder, **others):
    settings = {"max_steps": 12, "per_device_train_batch_size": 8, "learning_rate": 3e-3, "logging_steps": 4} | others
    return transformers.TrainingArguments(
        output_dir=str(folder), report_to=[], disable_tqdm=True, use_cpu=True, seed=0, **settings
    )


def trainer(folder, make=None, data=DATA, **others):
    torch.manual_seed(0)
    model = Shared(*data)
    weigher = (make or target_first)(model)
    return TaskTrainer(model, weigher, data, args=arguments(folder, **others), eval_dataset=rows(20, 3))


def target_first(model):
    return TargetFirst(model.encoder.parameters(), "mine", ["near", "coin"], observe_every=1, update_every=2)


def test_the_trainer_learns_with_weights_that_follow_the_target(tmp_path):
    found = trainer(tmp_path, max_steps=40)
    found.train()
    lines = [line for line in found.state.log_history if "loss" in line]
    assert lines[-1]["weight_near"] > lines[-1]["weight_coin"]
    assert sum(value for key, value in lines[-1].items() if key.startswith("weight_")) == pytest.approx(1)
    assert found.evaluate()["eval_loss"] < 0.5
    predicted = found.predict(rows(20, 3))
    assert (predicted.predictions.argmax(1) == predicted.label_ids).mean() > 0.8


def test_a_single_task_is_the_plain_trainer(tmp_path):
    ours = trainer(tmp_path, lambda _: Uniform(["mine"]), {"mine": DATA["near"]})
    ours.train()
    torch.manual_seed(0)
    plain = transformers.Trainer(Shared("mine"), args=arguments(tmp_path), train_dataset=DATA["near"])
    plain.train()
    for a, b in zip(ours.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_resumed_run_ends_with_the_same_weights(tmp_path):
    whole = trainer(tmp_path / "whole", save_steps=100)
    whole.train()
    trainer(tmp_path / "part", save_steps=6).train()
    resumed = trainer(tmp_path / "part", save_steps=100)
    resumed.train(resume_from_checkpoint=str(tmp_path / "part" / "checkpoint-6"))
    assert resumed.weigher.weights == whole.weigher.weights
    for a, b in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_query_rows_move_the_weights_after_each_step(tmp_path):
    held = Together({name: each[:8] for name, each in DATA.items()})
    loader = torch.utils.data.DataLoader(
        held, batch_size=4, collate_fn=collated(held.tasks, transformers.default_data_collator)
    )

    def query_first(model):
        return QueryFirst(model.parameters(), list(DATA), loader, alpha=0.5)

    found = trainer(tmp_path, query_first)
    found.train()
    assert len(set(found.weigher.weights.values())) == 3
    assert sum(found.weigher.weights.values()) == pytest.approx(1)
    with pytest.raises(SteelyardError, match="gradient_accumulation_steps = 1"):
        trainer(tmp_path, query_first, gradient_accumulation_steps=2)


def test_accumulated_gradients_are_those_of_the_large_batch(tmp_path):
    large = trainer(tmp_path, lambda _: Uniform(list(DATA)), max_steps=3)
    pieces = trainer(
        tmp_path,
        lambda _: Uniform(list(DATA)),
        max_steps=3,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
    )
    large.train()
    pieces.train()
    for a, b in zip(large.model.parameters(), pieces.model.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-4)


def test_bad_input(tmp_path):
    with pytest.raises(SteelyardError, match="'coin' is not in both"):
        trainer(tmp_path, data={"mine": DATA["mine"], "near": DATA["near"]})
