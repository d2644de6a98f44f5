"""The studies of what a source is worth to a target, in sizes that take seconds."""

import json

import pytest
import torch

from steelyard import studies
from steelyard.studies import noisy_rows, signals, three_sources
from steelyard.tasks import Role


def run(name, settings, monkeypatch, tmp_path):
    study = studies.get(name)
    monkeypatch.setattr(study, "settings", {"small": settings})
    found, failed = studies.run(study(), tmp_path / name, size="small", jobs=1, progress=False)
    assert not failed
    return found


def test_flip_rate(monkeypatch, tmp_path):
    settings = {"seeds": 1, "rates": [0.0, 0.5, 1.0], "rows": [20], "source_rows": 100, "points": 30, "epochs": 1}
    found = run("flip-rate", settings, monkeypatch, tmp_path)
    ranks, gains = found.tables
    assert [row[1] for row in ranks.rows] == ["trained", "answers", "gradients"]
    assert gains.columns[2:] == ("q = 0", "q = 0.5", "q = 1")
    assert set(found.figures) == {"distance", "gain"}
    cells = [json.loads(line)["value"] for line in (tmp_path / "flip-rate" / "cells.jsonl").read_text().splitlines()]
    assert all(len(cell["learned"]) == 3 and 0 <= cell["single"] <= 1 for cell in cells)


def test_signals(monkeypatch, tmp_path):
    chosen = ("every step, dev_meta", "αVIL's deltas")
    monkeypatch.setattr(signals, "SIGNALS", {name: signals.SIGNALS[name] for name in chosen})
    found = run("signals", {"seeds": 1, "epochs": 1, "steps": 3, "suites": ["digits"]}, monkeypatch, tmp_path)
    ranking, accuracy = found.tables
    assert [row[0] for row in ranking.rows] == [*chosen, signals.DISTANCE]
    assert all(float(row[2]) + float(row[3]) + float(row[4]) == pytest.approx(1, abs=0.02) for row in ranking.rows)
    assert [row[0] for row in accuracy.rows] == [*signals.CONTROLS, *chosen, signals.DISTANCE]
    assert "on each suite:" in found.answer


def test_noisy_rows(monkeypatch, tmp_path):
    found = run("noisy-rows", {"seeds": 1, "rates": [0.2], "epochs": 2, "rows": 60}, monkeypatch, tmp_path)
    (table,) = found.tables
    assert [row[1] for row in table.rows] == list(noisy_rows.WAYS)
    assert all(0 <= float(row[2].split(" ")[0]) <= 1 for row in table.rows)
    assert "AUROC of 0.8 or more" in found.answer


def test_the_three_sources_are_what_they_say():
    suite = three_sources.digits(seed=3)
    again, other = three_sources.digits(seed=3), three_sources.digits(seed=4)
    target, permuted = (suite[name].rows[Role.TRAIN] for name in ("target", "permuted"))
    assert len(target) == 50
    assert torch.equal(target.inputs, again["target"].rows[Role.TRAIN].inputs)
    assert not torch.equal(target.inputs, other["target"].rows[Role.TRAIN].inputs)
    assert {name: task.size() for name, task in suite.tasks.items()} == {
        "target": 50, "helpful": 300, "irrelevant": 300, "permuted": 300,
    }  # fmt: skip
    everything = torch.cat([suite[name].rows[Role.TRAIN].inputs.flatten(1) for name in suite.tasks])
    assert len(torch.unique(everything, dim=0)) == len(everything), "no image is in two tasks"
    assert suite["helpful"].outputs == 5
    assert permuted.labels.bincount(minlength=10).min() > 10
