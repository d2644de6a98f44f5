"""Weights of losses compose with combinations of gradients, by name, in Python and in a file."""

import pickle

import pytest
import torch
from torch import nn

from steelyard import config, fit, methods, testing
from steelyard.errors import SteelyardError
from steelyard.methods import Combination, Method
from steelyard.methods.tawt import TAWT
from steelyard.training.run import load

COMBINING = [name for name in methods.names() if issubclass(methods.get(name), Combination)]
WEIGHING = [name for name in methods.names() if name not in COMBINING and methods.get(name).composes]

FORMS = {
    "inline": '[method]\nweights = "tawt"\ngradients = "pcgrad"',
    "tables": '[method.weights]\nname = "tawt"\n[method.gradients]\nname = "pcgrad"',
    "joined": '[method]\nname = "tawt+pcgrad"',
}


def from_toml(tmp_path, text):
    path = tmp_path / "job.toml"
    path.write_text(f'[target]\nname = "a"\ntrain = "a.csv"\ntext = "t"\nlabel = "l"\n{text}\n')
    return config.load(path)


@pytest.mark.parametrize("text", FORMS.values(), ids=FORMS)
def test_a_file_says_it_in_three_ways(tmp_path, text):
    read = from_toml(tmp_path, text)
    assert read.method.build().name == "tawt+pcgrad"
    kept = config.resolved(read, tmp_path)["method"]
    assert kept["name"] == "tawt+pcgrad"
    assert methods.build(kept).options == read.method.build().options


def test_each_side_has_its_own_options(tmp_path):
    read = from_toml(tmp_path, '[method.weights]\nname = "tawt"\neta = 2.0\n[method.gradients]\nname = "cagrad"')
    joined = from_toml(tmp_path, '[method]\nname = "tawt+cagrad"\n[method.weights]\neta = 2.0')
    for table in (read, joined):
        method = table.method.build()
        assert (method.options.weights.eta, method.options.gradients.radius) == (2.0, 0.5)
    in_python = methods.build({"weights": TAWT(eta=2.0), "gradients": {"name": "cagrad", "radius": 0.3}})
    assert (in_python.options.weights.eta, in_python.options.gradients.radius) == (2.0, 0.3)


def test_one_side_alone_is_that_method():
    assert methods.build({"gradients": "pcgrad"}).name == "pcgrad"
    assert methods.build({"weights": {"name": "tawt", "eta": 3.0}}).options.eta == 3.0
    assert methods.build({}).name == "uniform"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"weights": "tawd", "gradients": "pcgrad"}, "no method 'tawd'.*tawt"),
        ({"weights": "pcgrad", "gradients": "mgda"}, "'pcgrad' combines gradients.*put it second"),
        ({"weights": "tawt", "gradients": "joint"}, "'joint' does not combine gradients"),
        ({"weights": "tawt", "gradients": "pcgrad", "eta": 1}, "there is no 'eta'.*side"),
        ({"weights": {"name": "tawt", "etta": 1}, "gradients": "pcgrad"}, "'tawt' has no option 'etta'.*eta"),
        ({"weights": 3, "gradients": "pcgrad"}, "weights is a method's name"),
        ({"weights": "alphavil", "gradients": "pcgrad"}, "'alphavil' takes steps of its own"),
        ("uniform+", "no method ''"),
    ],
)
def test_what_cannot_be_composed_is_refused_in_a_line(given, says):
    with pytest.raises(SteelyardError, match=says) as error:
        methods.build(given)
    assert "\n" not in str(error.value)


def test_a_method_that_goes_past_the_hook_is_refused():
    class Past(Method):
        name = "past"
        summary = "a test's"

        def step(self, job):
            job.descend(job.batch(), self.weights)

    with pytest.raises(SteelyardError, match="'past' takes steps of its own"):
        testing.train(lambda: methods.build({"weights": Past(), "gradients": "pcgrad"}))


@pytest.mark.parametrize("name", WEIGHING)
def test_every_weighing_composes(name):
    """With one combination; it passes the hook at each step, or would be refused."""
    run = testing.train(methods.get(f"{name}+pcgrad"), epochs=2)
    assert all(p.isfinite().all() for p in run.model.parameters())


@pytest.mark.parametrize("check", testing.METHOD_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", ["tawt+pcgrad", "joint+gradvac"])
def test_a_composition_conforms(name, check):
    check(methods.get(name))


def test_uniform_weights_change_nothing():
    alone, composed = testing.train(methods.get("cagrad")), testing.train(methods.get("uniform+cagrad"))
    for (name, a), b in zip(alone.model.state_dict().items(), composed.model.state_dict().values(), strict=True):
        assert torch.equal(a, b), name


def test_weights_scale_the_gradients_that_are_combined():
    """With joint weights the target-first direction is that of the weighted gradients."""
    seen = []

    class Watching(Combination):
        name = "watching"
        summary = "a test's"

        def combine(self, gram, tasks, job):
            seen.append((gram, job.sizes))
            return gram.new_full((len(gram),), 1 / len(gram))

    encoder = nn.Sequential(nn.Linear(5, 6), nn.Tanh())
    for weights in ("uniform", "joint"):
        method = methods.build({"weights": weights, "gradients": Watching()})
        torch.manual_seed(0)
        encoder.apply(lambda m: m.reset_parameters() if hasattr(m, "reset_parameters") else None)
        fit(testing.suite(), encoder, method, epochs=1, steps_per_epoch=1, progress=False, device="cpu")
    (plain, _), (weighted, sizes) = seen
    share = len(sizes) * sizes.double() / sizes.sum()
    torch.testing.assert_close(weighted, share[:, None] * plain * share)


def test_a_composition_survives_pickling():
    method = methods.build({"weights": TAWT(eta=2.0), "gradients": "gradvac"})
    again = pickle.loads(pickle.dumps(method))  # noqa: S301
    assert (again.name, again.options) == (method.name, method.options)
    assert again.weighing.combination is again.combining
    testing.train(lambda: again, epochs=1)


def test_a_composed_run_is_read_back(tmp_path):
    method = methods.get("ramp+mgda")(weights={"growth": 0.5})
    fit(testing.suite(), "mlp", method, epochs=1, progress=False, device="cpu", out=tmp_path / "run")
    again = load(tmp_path / "run")
    assert again.summary["method"] == "ramp+mgda"
