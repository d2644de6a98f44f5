"""The commands, as a person or a machine calls them."""

import csv
import json
import subprocess
import sys
import tomllib

import pytest
from safetensors.torch import load_file

from steelyard import load, methods


def test_train_leaves_a_run_folder_and_predict_reads_it(job, steelyard):
    status, out, err = steelyard("train", "job.toml", "--out", "run")
    assert status == 0, err
    assert "complaints (target)" in out
    assert "run folder: run" in out
    files = {path.name for path in (job / "run").iterdir()}
    assert files >= {
        "config.toml", "metrics.jsonl", "weights.csv", "model.safetensors", "checkpoint", "summary.json", "report.html",
    }  # fmt: skip
    summary = json.loads((job / "run/summary.json").read_text())
    assert summary["metrics"]["test"]["accuracy"] > 0.7
    assert set(summary["weights"]) == {"complaints", "reviews", "messages"}
    lines = [json.loads(line) for line in (job / "run/metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2, 3]
    with (job / "run/weights.csv").open() as file:
        assert csv.DictReader(file).fieldnames == ["step", "task", "weight"]
    assert tomllib.loads((job / "run/config.toml").read_text())["training"]["batch_size"] == 32
    assert load_file(job / "run/model.safetensors")

    (job / "new.csv").write_text("id,body\n7,awful terrible sad broken film\n8,great happy lovely fine film\n")
    status, out, err = steelyard("predict", "run", "new.csv")
    assert status == 0, err
    rows = list(csv.DictReader(out.splitlines()))
    assert [row["id"] for row in rows] == ["7", "8"]
    assert [row["predicted_topic"] for row in rows] == ["angry", "content"]


def test_a_regression_is_told_in_its_own_units_and_weighs_no_more_for_them(job, steelyard):
    """A source of prices in thousands neither drowns the target nor is predicted in standard deviations."""
    good = [("great lovely happy", 9000.5), ("awful broken sad", 1000.5)] * 40
    for factor, name in ((1.0, "prices"), (2.0**-10, "small")):
        rows = [f"{text} {'the a film'.split()[i // 2 % 3]},{price * factor}" for i, (text, price) in enumerate(good)]
        for part, chosen in (("", [r for r in rows if "film" not in r]), ("_dev", [r for r in rows if "film" in r])):
            (job / f"{name}{part}.csv").write_text("text,price\n" + "\n".join(chosen) + "\n")
        both = f'"{name}.csv"\ndev = "{name}_dev.csv"'
        edit = (job / "job.toml").read_text().replace('"reviews.csv"', both).replace('"stars"', '"price"')
        (job / f"{name}.toml").write_text(edit.replace("epochs = 3", "epochs = 12"))
        status, _, err = steelyard("train", f"{name}.toml", "--out", name)
        assert status == 0, err
    large, small = (json.loads((job / name / "summary.json").read_text()) for name in ("prices", "small"))
    assert large["metrics"]["test"] == pytest.approx(small["metrics"]["test"], abs=1e-3)
    rmse = large["tasks"]["reviews"]["dev_select"]["rmse"]
    assert rmse == pytest.approx(2**10 * small["tasks"]["reviews"]["dev_select"]["rmse"], rel=1e-2)
    assert rmse < 2000
    (job / "new.csv").write_text("text\ngreat lovely happy\nawful broken sad\n")
    _, out, _ = steelyard("predict", "prices", "new.csv", "--task", "reviews")
    high, low = (float(row["predicted_price"]) for row in csv.DictReader(out.splitlines()))
    assert low < 4000
    assert 6000 < high < 12000
    found = load(job / "prices")
    assert found.suite["reviews"].units.mean == pytest.approx((5000.5,), abs=200)


def test_predictions_are_those_of_the_model(job, steelyard):
    steelyard("train", "job.toml", "--out", "run")
    _, out, _ = steelyard("predict", "run", "test.csv", "--out", "predicted.csv")
    assert out == ""
    with (job / "predicted.csv").open() as file:
        rows = list(csv.DictReader(file))
    right = sum(row["topic"] == row["predicted_topic"] for row in rows) / len(rows)
    summary = json.loads((job / "run/summary.json").read_text())
    assert right == pytest.approx(summary["metrics"]["test"]["accuracy"], abs=1e-9)


def test_jsonl_in_jsonl_out_and_every_task_can_be_asked(job, steelyard):
    steelyard("train", "job.toml", "--out", "run")
    (job / "new.jsonl").write_text(json.dumps({"message": "great happy fine", "n": 1}) + "\n")
    status, out, err = steelyard("predict", "run", "new.jsonl", "--task", "messages")
    assert status == 0, err
    row = json.loads(out)
    assert row["n"] == 1
    assert row["predicted_mood"] in ("0", "1")


def test_the_same_command_reads_a_finished_run_back(job, steelyard):
    steelyard("train", "job.toml", "--out", "run")
    before = (job / "run/model.safetensors").read_bytes()
    status, out, _ = steelyard("train", "job.toml", "--out", "run")
    assert status == 0
    assert "had finished already" in out
    assert (job / "run/model.safetensors").read_bytes() == before
    assert len(load(job / "run").history) == 3


def test_json_is_one_object(job, steelyard):
    status, out, err = steelyard("train", "job.toml", "--out", "run", "--json", "--set", "training.epochs=1")
    assert status == 0, err
    found = json.loads(out)
    assert found["run"] == "run"
    assert found["seed"] == 0
    for command in ("methods", "doctor"):
        status, out, err = steelyard(command, "--json")
        assert status == 0, err
        assert json.loads(out)


def test_methods_says_what_each_needs_and_costs_and_the_options_of_one(steelyard):
    status, out, err = steelyard("methods")
    assert status == 0, err
    assert all(name in out for name in methods.names())
    found = {each["name"]: each for each in json.loads(steelyard("methods", "--json")[1])}
    assert found["ramp"]["needs_target"]
    assert not found["uniform"]["needs_target"]
    assert found["single"]["paradigm"] == "single"
    assert all(each["cost"] for each in found.values())
    status, out, err = steelyard("methods", "ramp")
    assert status == 0, err
    assert "a target" in out
    assert "growth" in out
    assert json.loads(steelyard("methods", "ramp", "--json")[1]) == found["ramp"]


def test_demo_ends_with_the_table_and_a_run_folder(tmp_path, steelyard):
    status, out, err = steelyard("demo", "--seeds", 1, "--out", tmp_path / "demo")
    assert status == 0, err
    for name in ("single", "uniform", "joint", "run folder"):
        assert name in out
    assert {path.name for path in (tmp_path / "demo").iterdir()} >= {"report.html", "summary.json", "comparison.json"}


def test_help_and_import_are_light():
    code = (
        "import sys, steelyard, steelyard.cli; "
        "heavy = {'torch', 'transformers', 'matplotlib', 'sklearn', 'pyarrow', 'datasets'} & set(sys.modules); "
        "assert not heavy, heavy; "
        "import steelyard.training, steelyard.data, steelyard.encoders, steelyard.methods; "
        "heavy = {'transformers', 'matplotlib', 'datasets'} & set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_word_vectors_from_a_glove_file(job, steelyard):
    words = {
        word
        for name in ("complaints", "reviews")
        for word in (job / f"{name}.csv").read_text().replace(",", " ").split()
    }
    lines = [f"{word} {number}.25 -1.5 0.125" for number, word in enumerate(sorted(words))]
    (job / "glove.txt").write_text("\n".join(lines) + "\n")
    text = (job / "job.toml").read_text().replace("[model]", '[features]\nvectors = "glove.txt"\n\n[model]')
    (job / "job.toml").write_text(text.replace("size = 16\n", "freeze = true\n"))
    status, _, err = steelyard("train", "job.toml", "--out", "run", "--set", "training.epochs=1")
    assert status == 0, err
    assert "words have one" in err
    table = load(job / "run").model.encoder.words.table.weight
    assert table.shape[1] == 3
    assert (table[2:, 1] == -1.5).all()
    status, out, err = steelyard("predict", "run", "test.csv")
    assert status == 0, err
    assert out.splitlines()[0].endswith("topic") or "," in out
