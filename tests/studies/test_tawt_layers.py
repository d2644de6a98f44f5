"""TAWT's Table 1: who has which sentences, and what the tables make of the cells."""

from collections import Counter

import pytest
import torch

from steelyard import data, studies
from steelyard.studies import tawt_layers
from steelyard.studies.results import Results
from steelyard.tasks import Role

SETTINGS = {
    "seeds": 2, "epochs": 2, "steps": 4, "source_rows": 60, "test_rows": 30, "target_rows": {"pos": 20, "ner": 40},
}  # fmt: skip


@pytest.fixture(scope="module")
def corpus():
    try:
        return tawt_layers._read()[0]
    except data.suites.UnreachableError as reason:
        pytest.skip(f"suite:tagging and suite:glove are not cached and cannot be fetched: {reason}")


def sentences(task, role=Role.TRAIN):
    texts = task.rows[role].inputs
    return [tuple(ids.tolist()) for ids in torch.tensor_split(texts.values, texts.offsets[1:-1])]


def test_no_sentence_is_in_two_tasks_and_only_the_target_is_judged(corpus):
    suite = tawt_layers.tagged("ner", 3, SETTINGS)
    assert suite.target == "ner"
    assert {name: task.size() for name, task in suite.tasks.items()} == {"ner": 40, "pos": 60, "chunk": 60}
    assert {role: len(rows) for role, rows in suite["ner"].rows.items()} == {
        Role.TRAIN: 40, Role.DEV_SELECT: 100, Role.TEST: 30,
    }  # fmt: skip
    assert set(suite["pos"].rows) == set(suite["chunk"].rows) == {Role.TRAIN}
    twice = {text for text, count in Counter(sentences(corpus["ner"])).items() if count > 1}
    own = [set(sentences(task)) - twice for task in suite.tasks.values()]
    assert sum(map(len, own)) == len(set.union(*own)), "but for sentences that the corpus itself has twice"
    again, other = (sentences(tawt_layers.tagged("ner", seed, SETTINGS)["ner"]) for seed in (3, 4))
    assert again == sentences(suite["ner"]) != other


@pytest.mark.usefixtures("corpus")
def test_every_run_takes_the_same_steps_and_every_way_is_run(monkeypatch, tmp_path):
    monkeypatch.setattr(tawt_layers.TAWTLayers, "settings", {"small": SETTINGS | {"seeds": 1}})
    found, failed = studies.run(tawt_layers.TAWTLayers(), tmp_path / "layers", size="small", jobs=1, progress=False)
    assert not failed
    steps = {value["steps"] for _, value in _cells(tmp_path / "layers")}
    assert steps == {8}
    scores, gains, shares = found.tables
    assert [row[0] for row in scores.rows] == list(tawt_layers.TAWTLayers.ways)
    assert scores.columns == ("way", "pos", "pos, paper", "ner", "ner, paper", "mean", "mean, paper")
    assert scores.rows[0][2::2] == ["34.37", "33.20", "44.22"]
    assert gains.columns == ("gain", "pos", "ner", "mean")
    assert shares.columns == ("way", "pos", "ner")


def test_the_mean_over_layers_is_taken_seed_by_seed_and_only_where_all_layers_have_one():
    study = tawt_layers.TAWTLayers()
    cells = [
        (
            key,
            {"score": 10.0 * (key["target"] == "ner") + key["seed"] + 4 * ("paper" in key["way"]), "weights": _even()},
        )
        for key in study.keys(SETTINGS)
        if key != {"target": "pos", "way": "single", "seed": 1}
    ]
    found = study.findings(SETTINGS, Results(cells))
    assert "joint +4.0000 ± 0.0000" in found.answer
    scores = {row[0]: row for row in found.tables[0].rows}
    assert scores["joint, even"][5].startswith("5.5000 ±")  # (0 + 10) / 2 and (1 + 11) / 2
    assert scores["single"][5] == "5.0000", "seed 1 lacks a layer"


def test_what_stays_begins_where_what_learns_begins():
    ways = {way: tawt_layers._meaning(way)[0] for way in tawt_layers.TAWTLayers.ways}
    assert {way.partition(",")[0]: paradigm for way, paradigm in ways.items()} == {
        "single": "normalised_joint", "pre-training": "pretrain", "joint": "joint",
        "normalised joint": "normalised_joint",
    }  # fmt: skip
    assert tawt_layers._meaning("joint, even")[1:] == ("joint", {})
    assert tawt_layers._meaning("normalised joint, even")[1:] == ("uniform", {})
    assert tawt_layers._meaning("pre-training, tawt, paper's")[2] == {"as_published": True, "c": 10.0}


def _even():
    return dict.fromkeys(tawt_layers.LAYERS, 1 / 3)


def _cells(folder):
    from steelyard.studies import grid

    return [(key, value) for key, value in grid.read(folder / "cells.jsonl").items()]
