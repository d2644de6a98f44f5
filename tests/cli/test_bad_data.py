"""Data that is not what it should be: one line, exit status 2; or a note that goes with the run."""

import json
import os
import random

import pytest
from tests.package_index import served

from steelyard.data.suites import pins

WORDS = "great lovely superb awful broken sad film screen story table".split()


def rows(count, seed=0):
    draw = random.Random(seed)
    return [f"{' '.join(draw.choices(WORDS, k=4))} case {seed} {i},{'ab'[i % 2]}" for i in range(count)]


GOOD = "\n".join(["body,topic", *rows(40)]) + "\n"

CONFIG = """\
[target]
name  = "complaints"
train = "train.csv"
text  = "body"
label = "topic"

[training]
epochs = 1
"""


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEELYARD_CACHE", str(tmp_path / "cache"))
    (tmp_path / "train.csv").write_text(GOOD)
    (tmp_path / "job.toml").write_text(CONFIG)


def refused(steelyard, *says):
    status, out, err = steelyard("train", "job.toml", "--out", "run")
    assert (status, out) == (2, ""), err
    told = [line for line in err.splitlines() if line.startswith("steelyard:")]
    assert len(told) == 1, err
    assert "Traceback" not in err
    for words in says:
        assert words in told[0], told[0]


def noted(steelyard, *says):
    status, _, err = steelyard("train", "job.toml", "--out", "run")
    assert status == 0, err
    told = [line for line in err.splitlines() if line.startswith("steelyard: note:")]
    assert len(told) == 1, err
    for words in says:
        assert words in told[0], told[0]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (GOOD[: GOOD.rindex(",")].encode(), ["train.csv, line 41", "1 cells where the header has 2", "cut off"]),
        (GOOD.encode().replace(b"case 0 6,", b"caf\xe9,"), ["train.csv", "line 8", "0xe9", "save it as UTF-8"]),
        (GOOD.encode("utf-16"), ["train.csv", "line 1", "UTF-8"]),
        (GOOD.replace("case 0 3,", 'case "3,').replace("\n", '\n"', 1).encode(), ["train.csv, line 2", "quote"]),
        ((GOOD + '"an open one,a\n').encode(), ["train.csv, line 42", "a quote opens and never closes"]),
        (b"\x00\x01\x02" * 40, ["train.csv", "is it the right file?"]),
    ],
    ids=["truncated", "mixed encodings", "utf-16", "stray quotes", "open quote", "not text"],
)
def test_a_spoilt_csv(content, says, tmp_path, steelyard):
    (tmp_path / "train.csv").write_bytes(content)
    refused(steelyard, *says)


def test_columns_that_differ_between_files(tmp_path, steelyard):
    (tmp_path / "dev.csv").write_text(GOOD.replace("body,topic", "text,topic"))
    (tmp_path / "job.toml").write_text(CONFIG.replace("text  =", 'dev = "dev.csv"\ntext  ='))
    refused(steelyard, "dev.csv", "needs the column 'body'", "text, topic")


@pytest.mark.parametrize(
    ("file", "content", "place"),
    [
        ("t.conll", "the D\ndog N\n\na D\nbone\n", "t.conll, line 5"),
        (
            "t.jsonl",
            '{"w": ["a"], "t": ["D"]}\n{"w": ["a", "dog"], "t": ["D"]}\n',
            "t.jsonl, line 2: task 'complaints'",
        ),
    ],
)
def test_token_and_tag_counts_that_differ(file, content, place, tmp_path, steelyard):
    (tmp_path / file).write_text(content)
    inputs = 'label = "1"' if file == "t.conll" else 'text = "w"\nlabel = "t"'
    (tmp_path / "job.toml").write_text(f'[target]\nname = "complaints"\ntrain = "{file}"\n{inputs}\n')
    refused(steelyard, place)


@pytest.mark.filterwarnings("always::steelyard.data.DataWarning")
def test_labels_that_differ_only_by_case_or_space(tmp_path, steelyard):
    (tmp_path / "train.csv").write_text(GOOD + "one more,A\nand more,A\n")
    noted(steelyard, "train.csv", "'complaints'", "differ only by case or space: 'A', 'a'")


@pytest.mark.filterwarnings("always::steelyard.data.DataWarning")
def test_the_same_row_in_train_and_test(tmp_path, steelyard):
    (tmp_path / "test.csv").write_text("\n".join(["body,topic", *rows(6, 1), *rows(3)]) + "\n")
    (tmp_path / "job.toml").write_text(CONFIG.replace("text  =", 'test = "test.csv"\ndev_fraction = 0\ntext  ='))
    noted(steelyard, "3 of 9 rows in test (test.csv) are also in train", "remove them from test.csv or from train.csv")
    assert json.loads((tmp_path / "run/data.json").read_text())["duplicates"] == {"complaints": {"test in train": 3}}


@pytest.fixture
def suite(tmp_path):
    """A configuration that needs a package of 2.5 MB."""
    (tmp_path / "job.toml").write_text('[target]\nname = "t"\ntrain = "suite:sentiment4/tweets"\n')
    return pins.SENTIMENT


def test_a_package_with_the_wrong_hash(suite, monkeypatch, steelyard):
    with served(monkeypatch, suite.name.lower(), suite.file):
        refused(steelyard, suite.name, suite.version, "the hash is", f"not {suite.sha256[:12]}", "it is not used")


def test_a_package_that_is_gone(suite, tmp_path, monkeypatch, steelyard):
    with served(monkeypatch):
        refused(steelyard, suite.name, suite.version, "no configured index", f"put {suite.file} into {tmp_path}/cache")


def test_no_network(suite, tmp_path, monkeypatch, steelyard):
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.delenv("STEELYARD_OFFLINE", raising=False)
    refused(steelyard, suite.name, suite.version, "connect to a registry", f"put {suite.file} into {tmp_path}/cache")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")  # noqa: PTH110
def test_a_full_disk(suite, tmp_path, monkeypatch, steelyard):
    part = tmp_path / "cache/packages" / f"{suite.file}.part"
    part.parent.mkdir(parents=True)
    part.symlink_to("/dev/full")
    with served(monkeypatch, suite.name.lower(), suite.file):
        refused(steelyard, "the disk is full", suite.file, "free some space or set STEELYARD_CACHE")
