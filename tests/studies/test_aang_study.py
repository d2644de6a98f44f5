"""The study of AANG: every method puts as many rows through the encoder, and the tables say what was found."""

import pytest
import torch

from steelyard import Role, Rows, Suite, Task
from steelyard.studies import aang, get
from steelyard.studies.aang import META_ROWS, METHODS, TASKS, schedule
from steelyard.studies.results import Results


@pytest.mark.parametrize("size", ["small", "full"])
def test_compute_is_matched(size):
    """Every method puts exactly as many rows through the encoder in training, meta-gradients' own among them."""
    settings = get("aang").settings[size]
    auxiliary, batch = settings["auxiliary"], settings["batch"]

    def rows(method):
        found = schedule(method, settings, 0)
        steps, epochs = found["steps_per_epoch"], found["epochs"]
        if method == "fine-tuning":
            return steps * epochs * batch
        if method == "TAPT":
            return steps * (epochs * auxiliary + found["finetune_epochs"] * batch)
        meta = 0 if method == "static" else META_ROWS * steps * epochs
        return steps * (epochs * (batch + auxiliary) + found["finetune_epochs"] * batch) + meta

    assert {rows(method) for method in METHODS} == {rows("aang")}


def test_test_rows_are_drawn_from_all_and_are_the_same_for_every_seed(monkeypatch):
    """A packaged table may stand in the order of its classes: its first rows are no sample."""
    labels = (torch.arange(400) >= 200).long()
    rows = {role: Rows(torch.randn(400, 1), labels) for role in ("train", "dev_select", "test")}
    sorted_by_class = Task("movies", "classification", rows, outputs=2)
    monkeypatch.setattr(aang, "_read", lambda *_: Suite([sorted_by_class], "movies"))
    first, second = (
        aang.target("movies", {"rows": 64, "dev": 100, "test": 100}, seed)["movies"].rows for seed in (0, 1)
    )
    for role in (Role.DEV_SELECT, Role.TEST):
        assert 30 < int(first[role].labels.sum()) < 70
    assert torch.equal(first[Role.TEST].inputs, second[Role.TEST].inputs)
    assert not torch.equal(first[Role.DEV_SELECT].inputs, second[Role.DEV_SELECT].inputs)


def test_tables():
    study = get("aang")()
    cells = []
    for key in study.keys({"seeds": 5}):
        value = {"accuracy": 0.5 + 0.01 * key["seed"] + (0.1 if key["method"] == "aang" else 0.0)}
        if key["method"] == "aang":
            shares = {"transform: mask": 0.25, "output: denoise": 0.6}
            value |= {"early": shares, "late": shares, "lambda_e": 0.5}
        cells.append((key, value))
    assert len(cells) == 5 * len(TASKS) * len(METHODS)
    found = study.findings(study.settings["small"], Results(cells))
    assert "by +10.0000 ± 0.0000 points over even weights" in found.answer
    assert [table.columns[0] for table in found.tables] == ["method"] * 3 + ["primitive"] * 2
