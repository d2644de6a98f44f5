"""Encoders by name: shapes for every kind of task, options, and what is told when they do not fit."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from steelyard import encoders
from steelyard.errors import SteelyardError
from steelyard.model import SharedModel, masked_mean
from steelyard.tasks import Batch, Kind, Ragged, Role, Rows, Spec, Suite, Task, collate

TEXT = Spec((), 12, 0)
TEXTS = Ragged.of([[1, 2, 3, 4], [5, 6], [7]])
IMAGES = torch.randn(3, 1, 28, 28)
CLASSES = torch.tensor([0, 1, 2])
LABELS = {
    Kind.CLASSIFICATION: CLASSES,
    Kind.MULTILABEL: torch.eye(3),
    Kind.REGRESSION: torch.randn(3),
    Kind.TAGGING: Ragged.of([[0, 1, 2, 0], [1, 1], [2]]),
}
OUTPUTS = {Kind.CLASSIFICATION: 3, Kind.MULTILABEL: 3, Kind.REGRESSION: 1, Kind.TAGGING: 3}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small BERT without its weights' being worth anything."""
    transformers = pytest.importorskip("transformers")
    path = tmp_path_factory.mktemp("bert")
    torch.manual_seed(0)
    size = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    transformers.BertModel(transformers.BertConfig(vocab_size=12, **size)).eval().save_pretrained(path)
    return path


def batch_of(suite: Suite) -> Batch:
    rows = {name: task.rows[Role.TRAIN] for name, task in suite.tasks.items()}
    return collate([(r.inputs, torch.arange(len(r)), [(name, r.labels)]) for name, r in rows.items()])


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (name, kind)
        for name in [*encoders.names(), "transformer"]
        for kind in Kind
        if kind is not Kind.TAGGING or name in ("textcnn", "lstm", "transformer")
    ],
)
def test_every_encoder_learns_every_kind_of_task(name: str, kind: Kind, request: pytest.FixtureRequest) -> None:
    text = name in ("textcnn", "lstm", "transformer")
    suite = Suite([Task("t", kind, {"train": Rows(TEXTS if text else IMAGES, LABELS[kind])})])
    folder = str(request.getfixturevalue("folder")) if name == "transformer" else name
    encoder = encoders.build(folder, suite.spec)
    model = SharedModel(encoder, suite)
    assert model.width == encoder.width
    batch = batch_of(suite)
    outputs = model(batch)["t"]
    assert outputs.shape == ((3, 4) if kind is Kind.TAGGING else (3,)) + (OUTPUTS[kind],)
    losses = model.losses(batch)
    assert losses.counts.tolist() == [{Kind.MULTILABEL: 9, Kind.TAGGING: 7}.get(kind, 3)]
    losses.means.sum().backward()
    gradients = {n: p.grad for n, p in model.named_parameters()}
    assert all(g is not None and g.isfinite().all() for g in gradients.values()), gradients.keys()


@pytest.mark.parametrize("name", encoders.names())
def test_same_seed_same_encoder(name: str) -> None:
    spec = TEXT if name in ("textcnn", "lstm") else Spec((1, 28, 28))
    states = []
    for seed in (5, 5, 6):
        torch.manual_seed(seed)
        states.append(dict(encoders.build(name, spec).state_dict()))
    torch.testing.assert_close(states[0], states[1], rtol=0, atol=0)
    assert any(not torch.equal(states[0][key], states[2][key]) for key in states[0])


def test_options_reach_the_encoder() -> None:
    encoder = encoders.build("textcnn", Spec((), 12, 3), widths=[2], channels=5, size=6)
    assert encoder.width == 5
    assert encoder.words.table.padding_idx == 3
    assert tuple(encoder.convolutions[0].weight.shape) == (5, 6, 2)
    assert encoders.build("mlp", Spec((2, 3)), hidden=[4]).layers[1].weight.shape == (4, 6)
    assert encoders.build("lstm", TEXT, vectors=torch.ones(12, 3)).words.width == 3
    assert encoders.options("resnet") == {"channels": 16, "stages": 3, "blocks": 1, "norm": "batch"}
    assert set(encoders.options("any/name")) == {"pooling", "freeze", "pretrained", "layer_decay", "lora"}


@pytest.mark.parametrize(
    ("name", "spec", "options", "message"),
    [
        ("lenet", TEXT, {}, "encoder lenet reads numbers, but the rows are text; use textcnn, lstm"),
        (
            "lstm",
            Spec((4,)),
            {},
            r"encoder lstm reads text, but the rows are numbers of shape \[4\]; use mlp",
        ),
        ("a/model", Spec((4,)), {}, "encoder a/model reads text"),
        ("lenet", Spec((4,)), {}, r"rows have shape \[4\]; reshape them, or use mlp"),
        (
            "textcnn",
            TEXT,
            {"width": 3},
            r"no option 'width'; did you mean 'widths'\? there are: size, channels",
        ),
        ("textcnn", TEXT, {"padding": 1}, "no option 'padding'"),
        ("textcnn", TEXT, {"widths": "wide"}, "widths='wide' does not fit"),
        ("textcnn", TEXT, {"widths": []}, r"widths=\[\] does not fit"),
        ("mlp", Spec((4,)), {"hidden": [0]}, "greater than or equal to 1"),
        ("lstm", TEXT, {"dropout": 1.5}, "less than 1"),
        ("lstm", TEXT, {"vectors": 3}, "vectors=3 does not fit"),
        ("resnet", Spec((8, 8)), {"norm": "layer"}, "'batch' or 'group'"),
        ("lsmt", TEXT, {}, r"'lsmt' is not built in; did you mean 'lstm'\?"),
    ],
)
def test_what_does_not_fit_is_told_in_one_line(name: str, spec: Spec, options: dict[str, object], message: str) -> None:
    with pytest.raises(SteelyardError, match=message) as caught:
        encoders.build(name, spec, **options)
    assert "\n" not in str(caught.value)


def test_transformers_is_imported_only_when_used() -> None:
    code = "import sys, steelyard.encoders, steelyard.heads; print('transformers' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"


def test_a_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(SteelyardError, match=r"pip install 'steelyard\[text\]'"):
        encoders.build("some/model", TEXT)


def test_a_transformer_that_cannot_be_loaded_is_told_in_one_line(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text((folder / "config.json").read_text())
    (broken / "model.safetensors").write_bytes(b"not weights")
    for place in ("empty", "broken"):
        with pytest.raises(SteelyardError, match=f"{place} does not hold a Hugging Face model") as caught:
            encoders.build(str(tmp_path / place), TEXT)
        assert "\n" not in str(caught.value)
    with pytest.raises(SteelyardError, match="neither built in nor a folder") as caught:
        encoders.build("nobody/nothing", TEXT)
    assert "\n" not in str(caught.value)
    with pytest.raises(SteelyardError, match="knows 12 token ids, but the rows hold ids up to 29"):
        encoders.build(str(folder), Spec((), 30, 0))


def test_transformer_features_pooling_and_padding(folder: Path) -> None:
    ids, mask = TEXTS.padded(torch.arange(3))
    wide, wide_mask = nn.functional.pad(ids, (0, 3), value=9), nn.functional.pad(mask, (0, 3))
    encoder = encoders.build(str(folder), TEXT).eval()
    first = encoders.build(str(folder), TEXT, pooling="first").eval()
    features = encoder(ids, mask)
    torch.testing.assert_close(encoder(wide, wide_mask)[:, :4][mask], features[mask])
    torch.testing.assert_close(encoder.pool(features, mask), masked_mean(features, mask))
    torch.testing.assert_close(first.pool(features, mask), features[:, 0])
    expected = encoder.model(input_ids=ids, attention_mask=mask.long()).last_hidden_state
    torch.testing.assert_close(features, expected)


def test_transformer_can_be_frozen_or_new(folder: Path) -> None:
    frozen = encoders.build(str(folder), TEXT, freeze=True)
    assert not any(p.requires_grad for p in frozen.parameters())
    loaded = encoders.build(str(folder), TEXT)
    assert loaded.training
    torch.testing.assert_close(dict(loaded.state_dict()), dict(frozen.state_dict()), rtol=0, atol=0)
    torch.manual_seed(9)  # not the seed of the folder
    new = encoders.build(str(folder), TEXT, pretrained=False)
    name = "model.embeddings.word_embeddings.weight"
    assert not torch.equal(new.state_dict()[name], loaded.state_dict()[name])
    assert new.width == json.loads((folder / "config.json").read_text())["hidden_size"] == 8


def test_a_hugging_face_model_is_an_encoder_as_it_is(folder: Path) -> None:
    transformers = pytest.importorskip("transformers")
    bert = transformers.BertModel.from_pretrained(folder)
    suite = Suite(
        [
            Task("topic", "classification", {"train": Rows(TEXTS, CLASSES)}),
            Task("tags", "tagging", {"train": Rows(TEXTS, LABELS[Kind.TAGGING])}),
        ]
    )
    batch = batch_of(suite)
    part = batch.parts[0]
    model = SharedModel(bert, suite).eval()
    assert model.width == 8
    features: Tensor = bert(input_ids=part.inputs, attention_mask=part.mask.long()).last_hidden_state
    outputs = model(batch)
    torch.testing.assert_close(outputs["tags"], model.head("tags")(features[3:]))
    torch.testing.assert_close(outputs["topic"], model.head("topic")(masked_mean(features, part.mask)[:3]))
    compiled = SharedModel(torch.compile(bert, backend="eager"), suite).eval()
    assert compiled(batch)["tags"].shape == outputs["tags"].shape
    headed = transformers.BertForSequenceClassification(bert.config)
    with pytest.raises(SteelyardError, match="no last_hidden_state"):
        SharedModel(headed, suite)(batch)
