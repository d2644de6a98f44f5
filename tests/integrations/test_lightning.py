"""The real Lightning with task weights."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from steelyard.integrations import QueryFirst, TargetFirst, Together, Uniform, collated

lightning = pytest.importorskip("lightning", reason="Lightning is not here: install the extra lightning")

from steelyard.integrations.lightning import TaskModule  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning warns of workers, of loggers and of small epochs


def rows(count, seed, flip=False):
    draw = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 6, generator=draw)
    labels = torch.randint(0, 2, (count,), generator=draw) if flip else (inputs[:, 0] > 0).long()
    return TensorDataset(inputs, labels)


DATA = {"mine": rows(16, 0), "near": rows(64, 1), "coin": rows(64, 2, flip=True)}


class Mine(TaskModule):
    def __init__(self, make=None):
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.Sequential(nn.Linear(6, 16), nn.ReLU())
        self.heads = nn.ModuleDict({task: nn.Linear(16, 2) for task in DATA})
        self.weigher = (make or target_first)(self)

    def task_losses(self, batch):
        return {
            task: nn.functional.cross_entropy(self.heads[task](self.encoder(x)), y) for task, (x, y) in batch.items()
        }

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def target_first(model):
    return TargetFirst(model.encoder.parameters(), "mine", ["near", "coin"], observe_every=1, update_every=2)


def loader(size=8):
    together = Together(DATA)
    return DataLoader(together, batch_size=size, collate_fn=collated(together.tasks))


def train(module, epochs=2, folder=None, **others):
    settings = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False} | others
    trainer = lightning.Trainer(
        max_epochs=epochs, accelerator="cpu", enable_model_summary=False, default_root_dir=folder, **settings
    )
    trainer.fit(module, loader(others.pop("size", 8)))
    return trainer


def test_weights_follow_the_target_and_are_logged(tmp_path):
    module = Mine()
    trainer = train(module, 4, tmp_path)
    assert module.weigher.weights["near"] > module.weigher.weights["coin"]
    assert float(trainer.callback_metrics["weight/near"]) == pytest.approx(module.weigher.weights["near"], abs=0.2)
    assert "loss/mine" in trainer.callback_metrics


def test_uniform_is_the_loop_written_by_hand(tmp_path):
    module = Mine(lambda _: Uniform(list(DATA)))
    train(module, 1, tmp_path)
    by_hand = Mine(lambda _: Uniform(list(DATA)))
    optimizer = by_hand.configure_optimizers()
    for batch in loader():
        (sum(by_hand.task_losses(batch).values()) / 3).backward()
        optimizer.step()
        optimizer.zero_grad()
    for a, b in zip(module.parameters(), by_hand.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-6)


def test_checkpoints_keep_the_weights(tmp_path):
    whole = Mine()
    train(whole, 4, tmp_path)
    trainer = train(Mine(), 2, tmp_path)
    trainer.save_checkpoint(tmp_path / "part.ckpt")
    resumed = Mine()
    second = lightning.Trainer(
        max_epochs=4, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    second.fit(resumed, loader(), ckpt_path=tmp_path / "part.ckpt", weights_only=False)
    assert resumed.weigher.weights == whole.weigher.weights


def test_query_rows_move_the_weights(tmp_path):
    module = Mine(lambda model: QueryFirst(model.parameters(), list(DATA), loader(4), alpha=0.5))
    train(module, 1, tmp_path)
    assert len(set(module.weigher.weights.values())) == 3
    assert sum(module.weigher.weights.values()) == pytest.approx(1)


def test_lightnings_own_combined_loader(tmp_path):
    from lightning.pytorch.utilities import CombinedLoader

    module = Mine()
    loaders = {task: DataLoader(each, batch_size=4) for task, each in DATA.items()}
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, CombinedLoader(loaders, "max_size_cycle"))
    assert trainer.global_step == 16
