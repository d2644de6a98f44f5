"""What of a Hugging Face encoder is trained, and how fast; checkpoints that cannot be read."""

import pytest
import torch
from tests.objectives import tiny

from steelyard import SteelyardError, encoders, fit, gradients, load
from steelyard.training.optimisers import build_optimizer
from steelyard.training.settings import Training

QUICK = {"epochs": 1, "batch_size": 8, "device": "cpu", "progress": False}


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return tiny.write_model(tmp_path_factory.mktemp("bert"))


def build(folder, **options):
    return encoders.build(str(folder), tiny.suite().spec, **options)


def trained(encoder):
    return {name for name, p in encoder.named_parameters() if p.requires_grad}


def test_freezing_all_or_the_first_layers(bert):
    assert not trained(build(bert, freeze=True))
    whole = trained(build(bert))
    assert trained(build(bert, freeze=False)) == whole
    assert trained(build(bert, freeze=1)) == {name for name in whole if ".layer.1." in name}
    assert trained(build(bert, freeze=0)) == {name for name in whole if ".layer." in name}
    with pytest.raises(SteelyardError, match="has 2 layers, fewer than freeze = 3"):
        build(bert, freeze=3)


def test_rates_fall_from_layer_to_layer(bert):
    encoder = build(bert, layer_decay=0.5)
    named = {f"encoder.{name}": p for name, p in encoder.named_parameters()} | {
        "heads.a": torch.nn.Parameter(torch.ones(1))
    }
    optimizer = build_optimizer(named, Training(), 0.1, encoder.rates())
    found = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    for name, parameter in named.items():
        expected = 0.1
        if ".layer.0." in name:
            expected = 0.05
        elif "embeddings" in name:
            expected = 0.025
        assert found[id(parameter)] == pytest.approx(expected), name
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert build(bert).rates() == {}


def test_low_rank_changes_train_alone_and_are_kept(bert, tmp_path):
    pytest.importorskip("peft")
    suite = tiny.suite()
    low = {"encoder_options": {"lora": 2}, "learning_rate": 0.05, **QUICK}
    run = fit(suite, str(bert), "single", out=tmp_path / "run", **low)
    assert trained(run.model.encoder)
    assert all("lora_" in name for name in trained(run.model.encoder))
    back = load(tmp_path / "run")
    inputs = suite["mood"].rows["test"].inputs
    assert torch.equal(back.outputs(inputs), run.outputs(inputs))
    ids, mask = inputs.padded(torch.arange(6))
    encoder = run.model.encoder.eval()
    names = [name for name, p in encoder.named_parameters() if p.requires_grad]
    direction = {name: torch.randn_like(p) for name, p in encoder.named_parameters() if name in names}
    with gradients.record(encoder, torch.tensor([0, 0, 1, 1, 2, 2])) as tape:
        losses = encoder(ids, mask).sum((1, 2)).square().view(3, 2).mean(1)
    exact = gradients.exact_task_gradients(losses, {n: p for n, p in encoder.named_parameters() if n in names})
    expected = sum((exact[n] * direction[n]).flatten(1).sum(1) for n in names)
    torch.testing.assert_close(tape.slopes(losses, direction), expected, rtol=1e-3, atol=1e-3)
    run = fit(suite, str(bert), "aang", **low)
    assert len(run.weights) == 25


def test_a_corrupt_checkpoint_is_one_line(tmp_path):
    folder = tiny.write_model(tmp_path / "bert")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:200])
    with pytest.raises(SteelyardError, match="does not hold a Hugging Face model that can be read"):
        build(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(SteelyardError, match="does not hold a Hugging Face model that can be read"):
        build(folder)


def test_an_incompatible_checkpoint_is_one_line(tmp_path):
    import json

    folder = tiny.write_model(tmp_path / "bert")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"hidden_size": 32}))
    with pytest.raises(SteelyardError, match="does not hold a Hugging Face model that can be read"):
        build(folder)
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    with pytest.raises(SteelyardError, match=r"its weights are those of another model: 16 of the BertModel's tensors"):
        build(folder)
