"""``steelyard distance``: a list, a matrix, csv and JSON."""

import csv
import json

import pytest


@pytest.fixture
def quick(job):
    """The job with a small network and a single epoch."""
    text = (job / "job.toml").read_text().replace("epochs = 3", "epochs = 1")
    (job / "job.toml").write_text(text)
    return job


def test_lists_sources_from_near_to_far(quick, steelyard):
    status, out, err = steelyard("distance", "job.toml", "--out", "far.csv")
    assert status == 0, err
    assert "distance to 'complaints'" in out
    assert "without training" in out
    with (quick / "far.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["sources"], row["target"], row["estimate"]) for row in rows] == [
        (source, "complaints", estimate) for estimate in ("trained", "answers") for source in ("reviews", "messages")
    ]
    near, far = sorted(rows[:2], key=lambda row: float(row["value"]))
    assert out.index(near["sources"]) < out.index(far["sources"])


def test_matrix_and_json(quick, steelyard):
    status, out, err = steelyard("distance", "job.toml", "--all-pairs", "--quick", "--json")
    assert status == 0, err
    found = json.loads(out)
    assert len(found) == 6
    assert {each["estimate"] for each in found} == {"answers"}
    assert all(isinstance(each["value"], float) for each in found)
    _, out, _ = steelyard("distance", "job.toml", "--all-pairs", "--quick")
    assert "distance, without training" in out
    assert f"{found[0]['value']:+.4f}" in out


def test_bad_calls_are_one_line(quick, steelyard):
    assert steelyard("distance", "jbo.toml")[0] == 2
    text = (quick / "job.toml").read_text()
    (quick / "alone.toml").write_text(text[: text.index("[[source]]")] + text[text.index("[model]") :])
    status, _, err = steelyard("distance", "alone.toml")
    assert (status, err) == (
        2, "steelyard: alone.toml: there is no source to measure a distance to; add a [[source]]\n",
    )  # fmt: skip
