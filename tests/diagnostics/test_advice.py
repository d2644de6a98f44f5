"""Advice before training: what it looks at, and what it says."""

import json
import math
from pathlib import Path

import pytest
import torch

from steelyard import Rows, SteelyardError, Suite, Task, Training, fit, testing
from steelyard.diagnostics import advise
from steelyard.diagnostics._frozen import Features
from steelyard.diagnostics.advice import _told
from steelyard.diagnostics.cost import cost
from steelyard.training.memory import Peak


def tasks(shuffle=True, classes=("no", "yes"), seed=0):
    """A target, its own question on many more rows, and the same with labels in random order."""
    draw = torch.Generator().manual_seed(seed)
    plane = torch.randn(8, generator=draw)

    def rows(count, shuffled=False):
        inputs = torch.randn(count, 8, generator=draw)
        labels = (inputs @ plane > 0).long()
        return Rows(inputs, labels[torch.randperm(count, generator=draw)] if shuffled else labels)

    target = Task("mine", "classification", {"train": rows(60), "dev_select": rows(200)}, classes=["no", "yes"])
    near = Task("near", "classification", {"train": rows(400)}, classes=list(classes))
    far = Task("far", "classification", {"train": rows(400, shuffled=True)}, classes=["a", "b"])
    return Suite([target, near, far] if shuffle else [target, near], target="mine")


def test_it_tells_the_helpful_source_from_the_shuffled_one():
    found = advise(tasks(), "mlp", timed=False)
    near, far = found.sources
    assert (near.source, near.expected) == ("near", "help")
    assert (far.source, far.rows) == ("far", 400)
    assert far.expected != "help"
    assert near.told > far.told
    assert near.distance < far.distance
    assert (near.labels, far.labels) == (1.0, 0.0)
    assert near.similarity > 0.9
    assert found.method == "tawt"
    assert "far" in found.reasons[0]
    assert json.loads(json.dumps(found.to_json()))["target"] == "mine"


def test_where_every_source_helps_even_weights_are_advised():
    found = advise(tasks(shuffle=False, classes=["no", "maybe"]), "mlp", timed=False)
    assert found.method == "uniform"
    assert "6.7 times" in found.reasons[1]
    assert found.sources[0].labels == pytest.approx(1 / 3)


def test_without_sources_the_target_is_trained_alone():
    suite = tasks()
    found = advise(Suite([suite["mine"]], target="mine"), "mlp", epochs=2)
    assert (found.method, found.paradigm, found.sources) == ("single", "single", [])
    assert found.steps == 4
    assert found.seconds > 0
    assert found.peak_mb > 50


def test_the_cost_of_another_method_is_told_where_it_is_asked_for():
    suite = tasks()
    found = advise(suite, "mlp", epochs=2, method={"name": "alphavil", "ratio": 0.5}, encoder_options={"hidden": (64,)})
    assert (found.method, found.costed) == ("tawt", "alphavil")
    assert found.steps > 0
    assert advise(suite, "mlp", timed=False).costed == ""
    assert advise(suite, "mlp", epochs=1).costed == "tawt"


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="this system cannot forget earlier peaks")
def test_the_memory_of_a_method_that_keeps_much_is_foretold():
    """αVIL keeps a way and the optimiser's moments for every task: three models for each of three tasks."""
    suite, large = tasks(), {"hidden": (1500, 1500)}  # 9 MB
    told = {}
    for name in ("uniform", "alphavil"):
        told[name] = cost(suite, "mlp", name, Training(epochs=2, device="cpu"), large).peak_mb
    peak = Peak()
    fit(suite, "mlp", "alphavil", epochs=2, device="cpu", encoder_options=large, progress=False)
    assert told["alphavil"] == pytest.approx(peak.megabytes, rel=0.25)
    assert told["alphavil"] > told["uniform"] + 45


def test_labels_that_are_shuffled_tell_nothing_beyond_chance():
    """A source of random labels is one of its own shuffles: what it tells lies around nothing, within its error."""
    draw = torch.Generator().manual_seed(0)
    x, held = torch.randn(150, 6, generator=draw).double(), torch.randn(150, 6, generator=draw).double()
    head = torch.nn.Linear(6, 2).double()
    loss = tasks()["mine"].loss
    goal = Features([(x, (x[:, 0] > 0).long())], [(held, (held[:, 0] > 0).long())], loss, head)
    scores = []
    for seed in range(12):
        draw.manual_seed(seed)
        noise = [torch.randint(0, 2, (150,), generator=draw) for _ in range(2)]
        _, told, error = _told(Features([(x, noise[0])], [(held, noise[1])], loss, head), goal, 2, seed)
        scores.append(told / error)
    assert sum(abs(score) < 2.8 for score in scores) >= 10
    assert _told(goal, goal, 2, 0)[1] > 5 * _told(goal, goal, 2, 0)[2]


def test_the_look_leaves_no_trace_and_is_the_same_again():
    encoder = testing.encoder()
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    state = torch.get_rng_state()
    first, second = (advise(testing.suite(), encoder, epochs=1, timed=timed) for timed in (True, False))
    assert all(torch.equal(value, before[name]) for name, value in encoder.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert first.sources == second.sources
    assert math.isnan(second.seconds)


def test_kinds_of_every_sort_can_be_looked_at():
    draw = torch.Generator().manual_seed(0)
    inputs = torch.randn(60, 4, generator=draw)
    suite = Suite(
        [
            Task("price", "regression", {"train": Rows(inputs, inputs[:, 0])}),
            Task("many", "multilabel", {"train": Rows(inputs + 0, (inputs[:, :2] > 0).float())}, classes=["a", "b"]),
        ],
        target="price",
    )
    found = advise(suite, "mlp", timed=False)
    assert math.isnan(found.sources[0].labels)
    assert math.isfinite(found.sources[0].told)


def test_bad_input():
    suite = tasks()
    with pytest.raises(SteelyardError, match="advice needs a target"):
        advise(Suite(suite.tasks.values()), "mlp")


def test_the_command(tmp_path, steelyard, monkeypatch):
    from tests.jobs import write_job

    write_job(tmp_path)
    monkeypatch.chdir(tmp_path)
    status, out, err = steelyard("advise", "job.toml")
    assert status == 0, err
    for words in ("sources of 'complaints' (40 rows)", "reviews", "looks like", "start with: method", "steps, about"):
        assert words in out
    status, out, err = steelyard("advise", "job.toml", "--json")
    assert status == 0, err
    assert {each["source"] for each in json.loads(out)["sources"]} == {"reviews", "messages"}
    status, _, err = steelyard("advise", "none.toml")
    assert (status, err.count("\n")) == (2, 1)
