"""The masked-language head of a checkpoint: found, told from one that is new, and the same as the library's own."""

import pytest
import torch
import transformers
from tests.objectives import tiny

from steelyard import SteelyardError, fit, objectives
from steelyard.encoders import Transformer
from steelyard.methods.aang import AANG

SMALL = {
    "vocab_size": 40, "hidden_size": 16, "embedding_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 32, "dim": 16, "hidden_dim": 32, "n_layers": 1, "n_heads": 2,
}  # fmt: skip


def checkpoint(folder, kind, **changed):
    """A model of a kind with weights drawn at random, in a folder."""
    config = getattr(transformers, f"{kind}Config")()
    for name, value in (SMALL | changed).items():
        if hasattr(config, name):
            setattr(config, name, value)
    torch.manual_seed(0)
    model = getattr(transformers, f"{kind}ForMaskedLM")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("kind", ["Bert", "Roberta", "DistilBert", "Electra", "MPNet"])
def test_the_head_gives_the_librarys_logits(tmp_path, kind):
    model = checkpoint(tmp_path / "m", kind)
    ids = torch.randint(5, 40, (2, 7))
    with torch.no_grad():
        features = model.base_model(input_ids=ids).last_hidden_state
        expected = model(input_ids=ids).logits
        head = Transformer(str(tmp_path / "m")).language_head()
        assert head is not None
        found = head.logits(features.flatten(0, 1), model.get_input_embeddings().weight)
    torch.testing.assert_close(found, expected.flatten(0, 1), rtol=1e-4, atol=1e-5)


def test_a_head_of_another_form_is_none(tmp_path):
    checkpoint(tmp_path / "electra", "Electra", embedding_size=8)
    assert Transformer(str(tmp_path / "electra")).language_head() is None


def test_a_head_of_another_vocabulary_is_one_line(tmp_path):
    from safetensors.torch import load_file, save_file

    checkpoint(tmp_path / "m", "Bert")
    weights = tmp_path / "m" / "model.safetensors"
    save_file(load_file(weights) | {"cls.predictions.bias": torch.zeros(39)}, weights, {"format": "pt"})
    with pytest.raises(SteelyardError, match="its masked-language head does not fit its embeddings"):
        Transformer(str(tmp_path / "m")).language_head()


def test_a_checkpoint_without_a_head_has_none_and_says_nothing(tmp_path, capfd):
    encoder = Transformer(str(tiny.write_model(tmp_path / "bert")))
    state = torch.get_rng_state()
    assert encoder.language_head() is None
    assert torch.equal(torch.get_rng_state(), state), "what is drawn after it must not depend on it"
    told = capfd.readouterr()
    assert "MISSING" not in told.out + told.err
    assert Transformer(encoder.name, pretrained=False).language_head() is None


def test_warming_up_trains_the_head_alone(tmp_path):
    bare = str(tiny.write_model(tmp_path / "bare"))
    texts = tiny.rows(64, 0).inputs
    losses = objectives.warm_up(bare, texts, tmp_path / "warm", steps=150, rate=3e-2)
    assert sum(losses[-10:]) < 0.95 * sum(losses[:10])
    warm = Transformer(str(tmp_path / "warm"))
    for name, value in Transformer(bare).state_dict().items():
        assert torch.equal(value, warm.state_dict()[name]), name
    assert warm.tokens() == Transformer(bare).tokens()
    again = objectives.warm_up(bare, texts, tmp_path / "again", steps=150, rate=3e-2)
    assert again == losses


def test_token_objectives_begin_with_the_checkpoints_head(tmp_path):
    folder = tmp_path / "warm"
    objectives.warm_up(str(tiny.write_model(tmp_path / "bare")), tiny.rows(64, 0).inputs, folder, steps=5)
    head = Transformer(str(folder)).language_head()
    assert head is not None
    met = []

    class Looking(AANG):
        name = "looking"

        def start(self, job):
            super().start(job)
            for task in self.space.names:
                if task.endswith("denoise"):
                    linear, _, norm = job.model.head(task)
                    met.append(torch.equal(linear.weight, head.weight) and torch.equal(norm.bias, head.shift))
            met.append(torch.equal(job.model.get_submodule("method").decoder.bias, head.tokens))

    fit(tiny.suite(), str(folder), Looking(), epochs=1, device="cpu", progress=False)
    assert len(met) == 17
    assert all(met)


def test_a_head_that_cannot_be_warmed_is_said(tmp_path):
    checkpoint(tmp_path / "electra", "Electra", embedding_size=8)
    tiny.write_model(tmp_path / "bert")
    for file in ("vocab.txt", "tokenizer.json", "tokenizer_config.json"):
        if (tmp_path / "bert" / file).exists():
            (tmp_path / "electra" / file).write_bytes((tmp_path / "bert" / file).read_bytes())
    with pytest.raises(SteelyardError, match="no head of BERT's form"):
        objectives.warm_up(str(tmp_path / "electra"), tiny.rows(8, 0).inputs, tmp_path / "out")
