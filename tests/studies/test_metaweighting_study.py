"""The study ``metaweighting`` on invented sentences: every cell, every table, every figure."""

import pytest
import torch

from steelyard import Rows, Suite, Task, studies
from steelyard.studies import Results
from steelyard.studies import metaweighting as study
from steelyard.tasks import Ragged

TINY = {"seeds": 2, "rows": 32, "held_out": 16, "epochs": 1}


def invented(rows, held_out, seed):
    """Two words decide."""
    draw = torch.Generator().manual_seed(seed)

    def some(count):
        texts = [torch.randint(3, 20, (6,), generator=draw) for _ in range(count)]
        labels = torch.arange(count) % 2
        for text, label in zip(texts, labels, strict=True):
            text[0] = 1 + label
        return Rows(Ragged.of(texts), labels)

    sizes = {"train": rows, "dev_select": held_out, "test": held_out}
    made = [
        Task(domain, "classification", {role: some(size) for role, size in sizes.items()}, outputs=2)
        for domain in study.DOMAINS
    ]
    return Suite(made, vocabulary=20)


@pytest.fixture(scope="module")
def results():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study, "suite", invented)
        made = studies.get("metaweighting")()
        cells = [(key, made.measure(dict(TINY), **key)) for key in made.keys(TINY)]
    return Results(cells)


def test_every_cell_is_measured(results):
    assert len(results) == 2 * len({*study.BASELINES, *study.SWEPT})
    for key, value in results:
        assert set(value["tasks"]) == set(study.DOMAINS), key
        assert 0 <= value["accuracy"] <= 100
    losses = next(value["losses"] for key, value in results if key["method"] == "metaweighting")
    assert torch.tensor(losses).shape == (1, 4, 3)


def test_the_control_on_support_rows_has_even_weights(results):
    for _, value in results.where(method=study.SUPPORT):
        torch.testing.assert_close(torch.tensor(value["weights"]), torch.full((1, 4), 0.25), atol=1e-6, rtol=0)


def test_the_findings_are_the_papers_figures(results):
    found = studies.get("metaweighting")().findings(TINY, results)
    accuracy, domains, gaps = found.tables
    assert [row[0] for row in accuracy.rows] == list(study.BASELINES)
    assert len(domains.rows) == len(study.BASELINES)
    assert [row[0] for row in gaps.rows] == [study.SUPPORT, "metaweighting"]
    assert set(found.figures) == {
        "figure4-ratio", "figure5-alpha", "figure6-gap-even", "figure6-gap-metaweighting",
        *(f"figure8-{name}" for name in study.TRACED),
    }  # fmt: skip
    assert found.answer.startswith("MetaWeighting against even weights")


def test_the_real_rows_are_drawn_by_the_seed():
    from steelyard.data.suites import UnreachableError

    try:
        first, again, other = study.suite(20, 8, 0), study.suite(20, 8, 0), study.suite(20, 8, 1)
    except UnreachableError as error:
        pytest.skip(str(error))
    assert first.target is None
    assert {name: task.size() for name, task in first.tasks.items()} == dict.fromkeys(study.DOMAINS, 20)
    assert all(len(task.rows["test"]) == 8 for task in first.tasks.values())
    labels = [[task.rows["train"].labels.tolist() for task in each.tasks.values()] for each in (first, again, other)]
    assert labels[0] == labels[1] != labels[2]
