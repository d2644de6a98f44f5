"""What a source is worth: helpful ones show, useless ones do not, and groups are found on a budget."""

import csv
import json

import numpy as np
import pytest
import torch

from steelyard import report
from steelyard.errors import SteelyardError
from steelyard.studies import transfer
from steelyard.studies.grouping import least_squares, plan
from steelyard.tasks import Rows, Suite, Task

QUICK = {"jobs": 1, "progress": False, "epochs": 6, "batch_size": 16, "learning_rate": 0.02, "device": "cpu"}


def network():
    return torch.nn.Sequential(torch.nn.Linear(12, 8), torch.nn.Tanh())


def suite(seed, useless=1):
    """A target of 12 rows, a source of 200 with the same labels, and sources with random ones."""
    generator = torch.Generator().manual_seed(1000 + seed)
    truth = torch.randn(12, generator=torch.Generator().manual_seed(7))

    def rows(count, shuffled=False):
        inputs = torch.randn(count, 12, generator=generator)
        labels = (inputs @ truth > 0).long()
        return Rows(inputs, labels[torch.randperm(count, generator=generator)] if shuffled else labels)

    held = {"dev_select": rows(80), "test": rows(300)}
    tasks = [
        Task("target", "classification", {"train": rows(12), **held}, outputs=2),
        Task("same", "classification", {"train": rows(200), "test": rows(300), "dev_select": rows(80)}, outputs=2),
    ]
    tasks += [Task(f"noise{n}", "classification", {"train": rows(200, True)}, outputs=2) for n in range(useless)]
    return Suite(tasks, target="target")


def test_helpful_and_useless_sources_are_told_apart(tmp_path):
    found = transfer(suite, network, out=tmp_path / "out", seeds=5, matrix=True, **QUICK)
    same, noise = found.worth("same"), found.worth("noise0")
    assert same.gain.low > 0.05
    assert same.corrected < 0.05
    assert noise.gain.mean < same.gain.mean - 0.05
    assert found.worth("same", "left_out").gain.low > 0.05
    assert found.worth("noise0", "left_out").gain.mean < 0.05
    assert "helped by same" in found.answer
    # With two sources, what is left out of all is what is added to the other.
    assert found.worth("same", "left_out").gain == found.gain(["same", "noise0"], ["noise0"])
    with (tmp_path / "out" / "transfer.csv").open() as file:
        rows = {(r["target"], r["source"], r["kind"]): r for r in csv.DictReader(file)}
    assert float(rows["target", "same", "alone"]["gain"]) == pytest.approx(same.gain.mean)
    assert {target for target, *_ in rows} == {"target", "same"}  # noise has no rows to be judged by
    assert ("same", "target", "alone") in rows
    said = json.loads((tmp_path / "out" / "transfer.json").read_text())
    assert {run["steps"] for run in said["runs"] if run["target"] == "target"} == {found.results.cells[0][1]["steps"]}
    shown = json.loads((tmp_path / "out" / "findings.json").read_text())["matrices"][0]
    assert shown["rows"] == ["target", "same"]
    assert shown["columns"] == ["target", "same", "noise0"]
    assert shown["values"][0] == [None, pytest.approx(same.gain.mean), pytest.approx(noise.gain.mean)]
    assert "Transfer matrix" in report.write(tmp_path / "out").read_text()
    cells = (tmp_path / "out" / "cells.jsonl").read_text()
    transfer(suite, network, out=tmp_path / "out", seeds=5, matrix=True, **QUICK)
    assert (tmp_path / "out" / "cells.jsonl").read_text() == cells
    with pytest.raises(SteelyardError, match="belongs to another transfer"):
        transfer(suite, network, out=tmp_path / "out", **{**QUICK, "epochs": 1})


def test_a_budgeted_search_finds_the_source_that_helps(tmp_path):
    found = transfer(lambda seed: suite(seed, 4), network, out=tmp_path / "out", seeds=3, budget=16, **QUICK)
    effects = {name: effect.mean for name, effect in found.search.effects.items()}
    assert max(effects, key=effects.get) == "same"
    assert found.search.group[0] == "same"
    assert found.worth("same", "searched").gain.low > 0
    assert found.gain(list(found.search.group), []).mean > 0
    assert len((tmp_path / "out" / "cells.jsonl").read_text().splitlines()) <= 16 + 9
    assert "groups of sources" in (tmp_path / "out" / "transfer.md").read_text()
    with pytest.raises(SteelyardError, match="a budget of 6 runs is too small for 5 sources; it takes 10"):
        transfer(lambda seed: suite(seed, 4), network, out=tmp_path / "small", seeds=3, budget=6, **QUICK)


@pytest.mark.parametrize("count", [2, 5, 12])
def test_effects_are_those_that_the_numbers_were_made_with(count):
    """And their intervals cover the truth as often as they say, whatever the seeds add."""
    sources = [f"s{n}" for n in range(count)]
    truth = dict(zip(sources, np.linspace(-1, 1, count), strict=True))
    plans = plan(sources, [0, 1, 2], 6 * count)
    assert all(
        sum(s in group for group, _ in plans) == len(plans) / 2 for s in sources
    )  # fmt: skip
    generator = np.random.default_rng(count)
    covered = []
    for _ in range(400):
        level = generator.normal(size=3) * 10
        trials = [(g, s, sum(truth[x] for x in g) + level[s] + generator.normal()) for g, s in plans]
        effects = least_squares(sources, trials)
        covered += [effects[s].low <= truth[s] <= effects[s].high for s in sources]
    assert abs(np.mean(covered) - 0.95) < 0.025


def test_nothing_to_measure_is_said(tmp_path):
    with pytest.raises(SteelyardError, match="there is no source whose worth to 'target'"):
        transfer(Suite([suite(0)["target"]], target="target"), network, out=tmp_path / "out", **QUICK)
    with pytest.raises(SteelyardError, match="needs a target"):
        transfer(Suite(suite(0).tasks.values()), network, out=tmp_path / "out", **QUICK)


def test_the_command(tmp_path, steelyard, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.toml").write_text(
        '[target]\nname = "digit"\ntrain = "suite:digits/digit@50"\n[[source]]\nname = "loops"\n'
        'train = "suite:digits/loops@100"\n[model]\nencoder = "mlp"\n[training]\nepochs = 1\n'
    )
    status, out, err = steelyard("transfer", "c.toml", "--seeds", 2, "--jobs", 1, "--out", "o")
    assert status == 0, err
    assert "added to the target alone" in out
    status, out, err = steelyard("transfer", "c.toml", "--seeds", 2, "--jobs", 1, "--out", "o", "--json")
    assert json.loads(out)["worths"][0]["source"] == "loops"
    status, _, err = steelyard("transfer", "c.toml", "--method", "pcgradd", "--out", "p")
    assert status == 2
    assert "did you mean 'pcgrad'" in err
