"""The page says what the folder holds, in one file that fetches nothing and runs nothing but its own script."""

import csv
import json
import re
import shutil
from html.parser import HTMLParser

import pytest
from tests.report.folders import NASTY, SCRIPT

from steelyard import SteelyardError, fit, report, testing
from steelyard.report import drawing, plots
from steelyard.report.answer import answer, worth
from steelyard.report.html import Table
from steelyard.report.reading import RunRecord, read


class Elements(HTMLParser):
    """What a browser makes of a page: its elements and their text."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.attributes, self.texts = [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_data(self, data):
        self.texts.append(data)


def page_of(*folders, out):
    return report.write(*folders, out=out).read_text(encoding="utf-8")


@pytest.fixture
def pages(full_run, plain_run, study, tmp_path):
    return [
        page_of(full_run, out=tmp_path / "one.html"),
        page_of(full_run, plain_run, out=tmp_path / "two.html"),
        page_of(study, plain_run, out=tmp_path / "study.html"),
    ]


def test_what_the_data_contain_is_text(pages):
    """A name with markup in it makes no element, no handler, no script, wherever it stands."""
    for page in pages:
        found = Elements(page)
        assert found.tags.count("script") == 1
        assert all(value.startswith("data:image/svg+xml;base64,") for tag, name, value in found.attributes
                   if tag == "img" and name == "src")  # fmt: skip
        assert not [name for _, name, _ in found.attributes if name.startswith("on")]
        assert "alert(2)" in "".join(found.texts)
        ids = [value for _, name, value in found.attributes if name == "id"]
        assert len(ids) == len(set(ids))


def test_it_fetches_nothing(pages):
    for page in pages:
        found = Elements(page)
        outside = [value for _, name, value in found.attributes if name in ("src", "href") and ":" in value]
        assert all(value.startswith("data:") for value in outside)
        assert not re.search(r"@import|url\((?!#)", page)
        assert "default-src &#x27;none&#x27;" in page or "default-src 'none'" in page


def test_what_it_says(full_run, tmp_path):
    page = page_of(full_run, out=tmp_path / "p.html")
    plain = " ".join("".join(Elements(page).texts).split())
    value = read(full_run).summary["metrics"]["dev_select"]["accuracy"]
    assert f"{value:.4f}" in plain
    assert f"Be good at {NASTY} (24 labelled rows)" in plain
    assert "Its mean over 3 seeds differs by +0.0800 against single" in plain
    assert f"{SCRIPT} (+0.0300) helped" in plain
    assert "_plain (-0.0200) made no difference that can be told from chance" in plain
    for heading in ("Against the controls", "Sources", "Weights", "Progress", "Similarity and transfer", "Rows to read",
                    "How it was made", "tawt: stage", "Configuration", "objectives"):  # fmt: skip
        assert heading in plain


def test_a_weight_is_not_called_a_worth(plain_run):
    record = read(plain_run)
    assert "not yet what it was worth" not in " ".join(answer(record))  # all weights are the same: nothing to say
    moved = RunRecord(None, record.summary | {"weights": {NASTY: 0.4, "a": 0.5, "b": 0.1}}, [], {})
    assert answer(moved)[-1].endswith("a weight is what a source counted for, not yet what it was worth.")
    assert worth(moved) == ""


def test_every_number_is_there_to_copy(full_run, tmp_path):
    texts = Elements(page_of(full_run, out=tmp_path / "p.html")).texts
    with (full_run / "weights.csv").open() as file:
        assert all(f"{float(row['weight']):.4f}" in texts for row in csv.DictReader(file))
    for line in read(full_run).metrics:
        assert all(f"{values['train_loss']:.4f}" in texts for values in line["tasks"].values())


def test_a_long_run_of_many_tasks_stays_small(full_run, tmp_path):
    big = tmp_path / "big"
    shutil.copytree(full_run, big)
    tasks, steps = [f"task number {i}" for i in range(200)], 2000
    summary = json.loads((big / "summary.json").read_text())
    summary |= {"target": tasks[0], "tasks": {t: {"test": {"accuracy": 0.5, "loss": 1.0}} for t in tasks},
                "weights": dict.fromkeys(tasks, 0.005), "rows": dict.fromkeys(tasks, 10),
                "metrics": {"test": {"accuracy": 0.5, "loss": 1.0}}}  # fmt: skip
    (big / "summary.json").write_text(json.dumps(summary))
    with (big / "weights.csv").open("w") as file:
        file.write("step,task,weight\n")
        file.writelines(f"{20 * s},{t},{(s * i % 97) / 97}\n" for s in range(steps) for i, t in enumerate(tasks))
    line = {"phase": "joint", "epoch": 1, "seconds": 1.0, "weights": {}}
    each = {"train_loss": 0.51234, "dev_loss": 0.61234, "dev_accuracy": 0.71234}
    with (big / "metrics.jsonl").open("w") as file:
        file.writelines(json.dumps(line | {"step": s, "tasks": dict.fromkeys(tasks, each)}) + "\n" for s in range(300))
    page = report.write(big)
    assert page.stat().st_size < 3_000_000
    assert "12 of 200 lines are drawn" in page.read_text(encoding="utf-8")


def test_side_by_side(full_run, plain_run, tmp_path):
    plain = "".join(Elements(page_of(full_run, plain_run, out=tmp_path / "p.html")).texts)
    assert "2 runs side by side" in plain
    for part in ("method.name", "training.epochs", "uniform", "tawt", "Weights: full", "Weights: plain"):
        assert part in plain
    same = "".join(Elements(page_of(plain_run, plain_run, out=tmp_path / "q.html")).texts)
    assert "plain (2)" in same
    assert "Their configurations are the same." in same


def test_a_study(study, tmp_path):
    page = page_of(study, out=tmp_path / "p.html")
    assert page.index(">Accuracy<") < page.index("<details><summary>numbers</summary>") < page.index("0.7123456789")
    plain = "".join(Elements(page).texts)
    for part in (f"mine {SCRIPT}", "It helps.", "Accuracy", "Over three seeds.", "<b>b</b>", "fewer seeds", "6 cells",
                 f"broke {SCRIPT}"):  # fmt: skip
        assert part in plain


def test_the_same_figures_in_a_notebook(plain_run, full_run):
    run = fit(testing.suite(), testing.encoder(), "ramp", epochs=2, progress=False)
    found = report.figures(run)
    assert set(found) == {"weights", "progress", "losses"}
    for figure in [*found.values(), *report.figures(full_run).values()]:
        assert figure._repr_svg_().startswith("<svg")
        assert "<style>" in figure._repr_html_()
        assert Elements(figure._repr_html_()).tags.count("script") == 0
    assert report.figures(plain_run)["weights"].svg == report.figures(str(plain_run))["weights"].svg
    assert set(report.figures(full_run)) >= {"comparison", "sources", "matrix1", "stage", "notes"}


def test_intervals_are_students():
    mean, low, high = plots.mean_interval([1.0, 2.0, 3.0])
    assert mean == 2
    assert high - mean == pytest.approx(4.302653 / 3**0.5, rel=1e-6)  # t(0.975, 2) times sd 1 over root 3
    assert mean - low == pytest.approx(high - mean)


def test_names_are_never_read_as_formulas():
    svg = drawing.curves({"a$b": [(0, 1, 0, 2)], r"$\frac{$": [(1, 1, 0, 2)]}, "x$", "y_$")
    assert "x$" in svg
    assert "\\frac{" in svg
    assert svg == drawing.curves({"a$b": [(0, 1, 0, 2)], r"$\frac{$": [(1, 1, 0, 2)]}, "x$", "y_$")


def test_numbers_stand_right_and_words_left():
    shown = str(Table("t", ["name", "n", "text"], [["a", 1.5, "x"], ["b", None, "2 y"]]))
    assert "<td class=n>1.5000</td>" in shown
    assert "<td>x</td>" in shown


def test_bad_input(tmp_path, plain_run):
    cases = {
        tmp_path / "nothing": "there is no such folder",
        tmp_path: "it is neither a run nor a study",
    }
    for folder, words in cases.items():
        with pytest.raises(SteelyardError, match=words):
            report.write(folder)
    with pytest.raises(SteelyardError, match="name a run's folder"):
        report.write()
    (tmp_path / "mine.html").write_text("<p>mine</p>")
    with pytest.raises(SteelyardError, match="is not a report of ours"):
        report.write(plain_run, out=tmp_path / "mine.html")
    broken = tmp_path / "broken"
    shutil.copytree(plain_run, broken)
    (broken / "comparison.json").write_text("{")
    with pytest.raises(SteelyardError, match=r"comparison.json: not valid JSON"):
        report.write(broken)
    (broken / "comparison.json").unlink()
    (broken / "checkpoint" / "x").write_text("")
    (broken / "summary.json").unlink()
    with pytest.raises(SteelyardError, match="has not finished"):
        report.write(broken)


def test_the_command(plain_run, study, tmp_path, steelyard, monkeypatch):
    status, out, err = steelyard("report", plain_run)
    assert status == 0, err
    assert (plain_run / "report.html").exists()
    monkeypatch.chdir(tmp_path)
    status, out, err = steelyard("report", plain_run, study, "--json")
    assert status == 0, err
    assert json.loads(out)["report"] == "report.html"
    assert (tmp_path / "report.html").exists()
    status, _, err = steelyard("report", tmp_path / "none")
    assert (status, err.count("\n")) == (2, 1)


def test_rows_with_weights_can_be_read(tmp_path, steelyard, monkeypatch):
    """Training with a weight per row leaves all of them, and the heaviest and lightest rows with what they say."""
    from tests.jobs import write_job

    from steelyard import load

    write_job(tmp_path)
    monkeypatch.chdir(tmp_path)
    levels = ("--set", "method.name=tawt", "--set", "method.level=example", "--set", "training.epochs=2")
    status, _, err = steelyard("train", "job.toml", "--out", "run", *levels)
    assert status == 0, err
    weights = load("run").row_weights
    assert {name: len(each) for name, each in weights.items()} == {"reviews": 108, "messages": 72}
    assert all(float(each.mean()) == pytest.approx(1, abs=1e-4) for each in weights.values())
    lines = [json.loads(line) for line in (tmp_path / "run/examples.jsonl").read_text().splitlines()]
    own = [line for line in lines if line["task"] == "reviews"]
    assert len(own) == 20
    assert own[0]["weight"] == pytest.approx(float(weights["reviews"].max()))
    assert own[-1]["weight"] == pytest.approx(float(weights["reviews"].min()))
    file = (tmp_path / "reviews.csv").read_text().splitlines()
    for line in own:
        number = int(line["place"].rsplit(" ", 1)[1])
        assert file[number - 1] == f"{line['text']},{line['label']}"
    assert own[0]["text"] in (tmp_path / "run/report.html").read_text()
