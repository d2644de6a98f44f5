"""Whatever is wrong with the input gets one line that says what, where and what to do, and exit status 2."""

import pytest
from tests.jobs import CONFIG, write_csv


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def refused(steelyard, *arguments, says):
    status, _, err = steelyard(*arguments)
    assert status == 2, err
    complaint = [line for line in err.splitlines() if line.startswith("steelyard: ") and "note:" not in line]
    assert len(complaint) == 1, err
    assert "Traceback" not in err
    for word in says:
        assert word in complaint[0], complaint[0]


def train(steelyard, *more, says):
    refused(steelyard, "train", "job.toml", "--out", "run", *more, says=says)


def test_missing_configuration(job, steelyard):
    refused(steelyard, "train", "jop.toml", says=["jop.toml", "no such file", "'job.toml'"])


def test_missing_file(job, steelyard):
    edit(job / "job.toml", '"reviews.csv"', '"reviws.csv"')
    train(steelyard, says=["reviws.csv", "reviews"])
    assert not (job / "run").exists()


def test_missing_column(job, steelyard):
    edit(job / "job.toml", 'label = "stars"', 'label = "stras"')
    train(steelyard, says=["reviews.csv", "'reviews'", "'stras'", "'stars'"])


def test_unknown_label_in_dev(job, steelyard):
    edit(job / "dev.csv", "content", "contented")
    train(steelyard, says=["dev.csv", "'contented'", "'complaints'", "content"])


@pytest.mark.parametrize("content", ["", "body,topic\n"])
def test_empty_data(job, steelyard, content):
    (job / "complaints.csv").write_text(content)
    train(steelyard, says=["complaints.csv"])


def test_class_seen_once(job, steelyard):
    with (job / "complaints.csv").open("a") as file:
        file.write("the film was odd,baffled\n")
    train(steelyard, says=["complaints.csv", "'complaints'", "baffled", "once"])


def test_nan_feature(job, steelyard):
    rows = [[str(i), str(-i), "ab"[i % 2]] for i in range(40)]
    rows[17][1] = "nan"
    write_csv(job / "table.csv", ["x", "y", "label"], rows)
    (job / "job.toml").write_text('[target]\nname = "t"\ntrain = "table.csv"\nlabel = "label"\nfeatures = ["x", "y"]\n')
    train(steelyard, says=["table.csv", "'y'", "19"])


def test_loss_that_turns_nan(job, steelyard):
    edit(job / "job.toml", "learning_rate = 0.01", "learning_rate = 1e30")
    edit(job / "job.toml", "epochs = 3", 'epochs = 3\noptimizer = "SGD"\ncheckpoint_seconds = 0')
    train(steelyard, says=["task '", "not a finite number", "step", "learning_rate"])


def test_nan_keeps_the_last_good_checkpoint(job, steelyard):
    edit(job / "job.toml", "learning_rate = 0.01", "learning_rate = 1e-6")
    text = 'epochs = 3\noptimizer = "SGD"\ncheckpoint_seconds = 0\nlog_every = 1\n'
    text += 'schedule = "ExponentialLR"\nschedule_options = {gamma = 1e6}'
    edit(job / "job.toml", "epochs = 3", text)
    train(steelyard, says=["not a finite number", "last good checkpoint is kept in run/checkpoint/state.safetensors"])
    from steelyard.training.checkpoint import load

    state, damage = load(job / "run/checkpoint/state.safetensors")
    assert not damage
    assert all(value.isfinite().all() for value in state["model"].values())
    assert state["place"]["total"] >= 1


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("epochs = 3", "epohcs = 3", ["training.epohcs", "'epochs'"]),
        ("[training]", "[trainig]", ["'trainig'", "'training'"]),
        ('text = "text"', 'txt = "text"', ["source[0].txt", "'text'"]),
        ("size = 16", "sise = 16", ["sise", "size"]),
        ("[training]", '[method]\nname = "unifrom"\n[training]', ["'unifrom'", "'uniform'"]),
        ("[training]", '[method]\nname = "ramp"\ngrwth = 2\n[training]', ["'grwth'", "'growth'"]),
        ("epochs = 3", 'epochs = "three"', ["training.epochs", "three"]),
        ("epochs = 3", "epochs = 0", ["training.epochs"]),
        ("epochs = 3", 'optimizer = "Adamm"', ["training.optimizer", "Adam"]),
        ("epochs = 3", 'schedule = "cosin"', ["'cosin'", "'cosine'"]),
        ("epochs = 3", 'trackers = ["tensorbord"]', ["'tensorbord'", "'tensorboard'"]),
        ('encoder = "textcnn"', 'encoder = "textcn"', ["textcn", "textcnn"]),
        ('name = "reviews"', 'name = "complaints"', ["complaints"]),
        ("[model]", "[model", ["not valid TOML", "line"]),
    ],
)
def test_misspelt_configuration(job, steelyard, old, new, says):
    edit(job / "job.toml", old, new)
    train(steelyard, says=says)


def test_unknown_metric(job, steelyard):
    edit(job / "job.toml", 'label = "topic"', 'label = "topic"\nmetric = "acuracy"')
    train(steelyard, says=["'complaints'", "'acuracy'", "'accuracy'"])


def test_a_folder_of_another_configuration(job, steelyard):
    assert steelyard("train", "job.toml", "--out", "run")[0] == 0
    model = (job / "run/model.safetensors").read_bytes()
    edit(job / "job.toml", "epochs = 3", "epochs = 4")
    train(steelyard, says=["run belongs to another configuration", "training.epochs is 3 there and 4 here", "--out"])
    assert (job / "run/model.safetensors").read_bytes() == model


def test_a_folder_that_is_not_a_run(job, steelyard):
    (job / "run").mkdir()
    (job / "run/thesis.tex").write_text("years of work")
    train(steelyard, says=["run is not empty", "--out"])
    assert (job / "run/thesis.tex").read_text() == "years of work"


def test_data_that_changed_under_a_run(job, steelyard):
    """The checkpoint of an interrupted run is not mixed with other rows."""
    steelyard("train", "job.toml", "--out", "run", "--set", "training.checkpoint_seconds=0")
    (job / "run/summary.json").unlink()
    edit(job / "complaints.csv", "angry", "content")
    train(steelyard, "--set", "training.checkpoint_seconds=0", says=["data has changed"])


def test_data_that_changed_under_a_finished_run(job, steelyard):
    """The same command on other rows leaves the model and what reads new rows for it as they were."""
    steelyard("train", "job.toml", "--out", "run")
    before = {path.name: path.read_bytes() for path in (job / "run").iterdir() if path.is_file()}
    edit(job / "reviews.csv", "screen", "monitor")
    train(steelyard, says=["run: the data has changed", "--out"])
    assert {path.name: path.read_bytes() for path in (job / "run").iterdir() if path.is_file()} == before


def test_a_run_folder_with_a_broken_configuration(job, steelyard):
    (job / "run").mkdir()
    (job / "run/config.toml").write_text("[target\n")
    train(steelyard, says=["run/config.toml", "cannot read it", "line 1", "--out"])


def test_a_folder_that_holds_nothing_but_a_lock_is_empty(job, steelyard):
    (job / "run").mkdir()
    (job / "run/.lock").touch()
    status, _, err = steelyard("train", "job.toml", "--out", "run", "--set", "training.epochs=1")
    assert status == 0, err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["predict", "nowhere", "test.csv"], ["nowhere"]),
        (["predict", "run", "nothing.csv"], ["nothing.csv"]),
        (["predict", "run", "reviews.csv"], ["reviews.csv", "'body'"]),
        (["predict", "run", "test.csv", "--task", "moods"], ["'moods'", "messages"]),
        (["trian"], ["trian"]),
        (["methods", "rmp"], ["'rmp'", "'ramp'"]),
        (["train"], ["CONFIG"]),
        (["train", "job.toml", "--set", "epochs"], ["epochs", "key=value"]),
    ],
)
def test_other_commands(job, steelyard, arguments, says):
    steelyard("train", "job.toml", "--out", "run", "--set", "training.epochs=1")
    refused(steelyard, *arguments, says=says)


def test_debug_shows_the_traceback(job, steelyard):
    from steelyard import SteelyardError

    with pytest.raises(SteelyardError):
        steelyard("train", "nothing.toml", "--debug")


def test_the_job_itself_is_right(job, steelyard):
    """Every refusal above is for its own reason: untouched, the job trains."""
    assert CONFIG in (job / "job.toml").read_text()
    status, _, err = steelyard("train", "job.toml", "--out", "run", "--set", "training.epochs=1")
    assert status == 0, err
