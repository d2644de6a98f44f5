"""Packaged suites: digits always, two others where they are cached or can be fetched (14 MB)."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from steelyard import data
from steelyard.data import suites
from steelyard.errors import SteelyardError
from steelyard.tasks import Kind, Ragged, Role, Suite

NAMES = (
    "digits", "multimnist", "mnist-fashion", "dsprites", "sentiment4", "newsgroups", "reuters", "disaster36", "tagging",
    "lowtext", "pairs", "multilabel", "census", "jura",
)  # fmt: skip


def build(target: str, *sources: str, seed: int = 0) -> data.Prepared:
    others = [data.SourceData(name=f"s{i}", train=source) for i, source in enumerate(sources)]
    return data.build(data.TargetData(name="t", train=target), others, seed=seed)


def pictures(suite: Suite, task: str, role: Role) -> set[bytes]:
    return {row.numpy().tobytes() for row in suite[task].rows[role].inputs}


def test_names_and_descriptions() -> None:
    assert tuple(suites.names()) == NAMES
    for name in (*NAMES, "minilm"):
        described = suites.describe(name)
        assert described.owner
        assert described.licence
        assert name == "digits" or (described.packages and described.megabytes > 0)
    assert suites.describe("digits").cached
    assert suites.describe("multilabel").megabytes == 32.5
    with pytest.raises(SteelyardError, match="did you mean 'census'"):
        suites.describe("cencus")


def test_the_page_of_suites_has_all_of_them_with_their_counts() -> None:
    page = (Path(__file__).parents[2] / "docs/suites.md").read_text(encoding="utf-8")
    sections = {part.partition("\n")[0]: part for part in page.split("\n## ")[1:]}
    for name in NAMES:
        for part, counts in suites.get(name).counts.items():
            row = " | ".join(f"{counts[split]:,}" for split in ("train", "dev", "test"))
            assert f"| {row} |" in sections[name], f"{name} ({part}): {row}"
        packages = suites.describe(name).packages
        assert all(package.split()[1] in sections[name] for package in packages), (name, packages)
        if len(suites.get(name).tasks) < 10:
            assert all(f"`{task}`" in sections[name] for task in suites.get(name).tasks if "-score" not in task)


def test_digits_are_the_same_for_ever() -> None:
    found = suites.check("digits")
    assert {split: part["rows"] for split, part in found["single"].items()} == {"train": 1097, "dev": 100, "test": 600}
    first = build("suite:digits").suite["t"].rows[Role.TEST]
    assert first.labels[:12].tolist() == FIRST_DIGITS
    assert torch.equal(build("suite:digits", seed=7).suite["t"].rows[Role.TEST].labels, first.labels)


FIRST_DIGITS = [0, 1, 2, 5, 6, 8, 1, 2, 5, 0, 1, 7]


def test_digits_tasks_say_what_they_should() -> None:
    suite = build("suite:digits", "suite:digits/parity", "suite:digits/large", "suite:digits/loops").suite
    rows = [suite[name].rows[Role.TRAIN] for name in ("t", "s0", "s1", "s2")]
    digits = rows[0].labels.tolist()
    assert all(other.inputs is rows[0].inputs for other in rows)
    names = [[suite[n].classes[i] for i in r.labels] for n, r in zip(("s0", "s1", "s2"), rows[1:], strict=True)]
    assert names[0] == ["odd" if d % 2 else "even" for d in digits]
    assert names[1] == ["large" if d >= 5 else "small" for d in digits]
    assert names[2] == ["loop" if d in {0, 6, 8, 9} else "none" for d in digits]
    assert rows[0].inputs.shape == (1097, 1, 8, 8)
    assert (rows[0].inputs.min(), rows[0].inputs.max()) == (0, 1)


def test_no_image_is_on_two_sides() -> None:
    suite = build("suite:digits").suite
    train, dev, test = (pictures(suite, "t", role) for role in (Role.TRAIN, Role.DEV_SELECT, Role.TEST))
    assert not train & dev
    assert not train & test
    assert not dev & test


def test_overlaid_digits_share_images() -> None:
    suite = build("suite:digits/left", "suite:digits/right").suite
    for role in (Role.TRAIN, Role.DEV_SELECT, Role.TEST):
        assert suite["t"].rows[role].inputs is suite["s0"].rows[role].inputs
    assert suite.sizes(Role.TEST) == {"t": 900, "s0": 900}
    assert suite["t"].rows[Role.TRAIN].labels.ne(suite["s0"].rows[Role.TRAIN].labels).float().mean() > 0.8


def test_few_rows_are_stratified_and_seeded() -> None:
    rows = [build("suite:digits@50", seed=seed).suite["t"].rows for seed in (0, 0, 1)]
    labels = [r[Role.TRAIN].labels for r in rows]
    shares = build("suite:digits").suite["t"].rows[Role.TRAIN].labels.bincount() * 50 / 1097
    assert (labels[0].bincount() - shares).abs().max() < 1
    assert torch.equal(rows[0][Role.TRAIN].lines, rows[1][Role.TRAIN].lines)
    assert not torch.equal(rows[0][Role.TRAIN].lines, rows[2][Role.TRAIN].lines)
    assert len(rows[0][Role.TEST]) == 600


def test_demo_keeps_its_sources_apart() -> None:
    suite = suites.demo(3)
    assert suite.target == "digit"
    assert suite.sizes() == {"digit": 50, "parity": 500, "large": 500, "loops": 500, "shuffled": 500}
    assert (suite["digit"].size(Role.DEV_SELECT), suite["digit"].size(Role.TEST)) == (100, 600)
    own = [pictures(suite, "digit", role) for role in (Role.TRAIN, Role.DEV_SELECT, Role.TEST)]
    for source in suite.sources:
        train = pictures(suite, source, Role.TRAIN)
        assert len(train) == 500
        assert not any(train & part for part in own)
    assert set(suite["shuffled"].rows) == {Role.TRAIN}
    again = suites.demo(3)["loops"].rows[Role.TRAIN]
    assert torch.equal(again.inputs, suite["loops"].rows[Role.TRAIN].inputs)


def accuracy(suite: Suite, names: list[str], seed: int) -> float:
    torch.manual_seed(seed)
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
    heads = nn.ModuleDict({name: nn.Linear(64, suite[name].outputs or 0) for name in names})
    optimiser = torch.optim.Adam([*encoder.parameters(), *heads.parameters()], lr=3e-3)
    for _ in range(300):
        loss = torch.zeros(())
        for name in names:
            rows = suite[name].rows[Role.TRAIN]
            chosen = torch.randperm(len(rows))[:32]
            loss = loss + F.cross_entropy(heads[name](encoder(rows.inputs[chosen])), rows.labels[chosen])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    test = suite["digit"].rows[Role.TEST]
    with torch.no_grad():
        return float((heads["digit"](encoder(test.inputs)).argmax(1) == test.labels).float().mean())


def test_demo_sources_help() -> None:
    gains = []
    for seed in range(3):
        suite = suites.demo(seed)
        helpful = [name for name in suite.tasks if name != "shuffled"]
        gains.append(accuracy(suite, helpful, seed) - accuracy(suite, ["digit"], seed))
    assert np.mean(gains) > 0.03


def test_references_name_roles_only_once() -> None:
    with pytest.raises(SteelyardError, match="comes from the suite itself"):
        data.build(data.TargetData(name="t", train="suite:digits", test="t.csv"))


def fetched(name: str) -> None:
    try:
        suites.fetch(name)
    except suites.UnreachableError as reason:
        pytest.skip(f"suite:{name} is not cached and cannot be fetched: {reason}")


@pytest.mark.usefixtures("shared_cache")
def test_sentiment4() -> None:
    fetched("sentiment4")
    start = time.perf_counter()
    prepared = build(
        "suite:sentiment4/tweets@200", *(f"suite:sentiment4/{d}" for d in ("amazon", "movies", "editorials"))
    )
    assert time.perf_counter() - start < 30
    assert prepared.suite.sizes() == {"t": 200, "s0": 1936, "s1": 6546, "s2": 1933}
    assert prepared.suite["t"].classes == ("negative", "positive")
    assert isinstance(prepared.suite["t"].rows[Role.TRAIN].inputs, Ragged)
    found = suites.check("sentiment4")
    assert found["tweets"]["test"] == {"rows": 858, "sha256": SENTIMENT_TWEETS}
    views = suites.tables("sentiment4", "amazon")
    documents = [set(views[split].column("document").to_pylist()) for split in ("train", "dev", "test")]
    assert not documents[0] & documents[1]
    assert not documents[0] & documents[2]


SENTIMENT_TWEETS = "4aab4974359da184abf8db122408eb8f129ceb1470584c61df7f6c87a624ac38"


@pytest.mark.usefixtures("shared_cache")
def test_multimnist() -> None:
    fetched("multimnist")
    prepared = build("suite:multimnist/left@500", "suite:multimnist/right@500")
    assert prepared.suite.sizes(Role.TEST) == {"t": 10_000, "s0": 10_000}
    test = prepared.suite["t"].rows[Role.TEST]
    assert test.inputs.shape == (10_000, 1, 28, 28)
    assert 0.05 < test.inputs.mean() < 0.5
    assert test.inputs.max() <= 1
    assert prepared.suite["t"].kind is Kind.CLASSIFICATION
    assert test.inputs is prepared.suite["s0"].rows[Role.TEST].inputs


PREPARE = "from steelyard.data import suites; print(suites.check('sentiment4')['tweets']['test']['sha256'])"


@pytest.mark.usefixtures("shared_cache")
def test_prepared_to_the_byte_by_two_processes_at_once(tmp_path: Path) -> None:
    fetched("sentiment4")
    file = "vaderSentiment-3.3.2.tar.gz"
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / file).symlink_to(data.cache.directory() / "packages" / file)
    environment = {**os.environ, "STEELYARD_CACHE": str(tmp_path)}
    command = [sys.executable, "-W", "error", "-c", PREPARE]
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        for _ in range(2)
    ]
    assert [process.communicate(timeout=120) for process in processes] == [(f"{SENTIMENT_TWEETS}\n", "")] * 2
