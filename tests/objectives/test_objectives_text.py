"""Text: transforms, attention masks and answers, on a tiny BERT."""

import pytest
import torch
from tests.objectives import tiny

from steelyard import SharedModel, encoders, objectives
from steelyard.errors import SteelyardError
from steelyard.objectives import Maker, Space, merged
from steelyard.objectives.draft import text_draft
from steelyard.objectives.stages import find
from steelyard.tasks import IGNORE, Batch, Part, Ragged, View

TOKENS = encoders.SpecialTokens(4, (0, 1, 2, 3, 4), len(tiny.WORDS))


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    folder = tiny.write_model(tmp_path_factory.mktemp("bert"))
    return encoders.build(str(folder), tiny.suite().spec).eval()


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def draft(n=40, seed=0):
    found = tiny.rows(n, seed)
    ids, mask = found.inputs.padded(torch.arange(n))
    return text_draft(ids, mask, found.labels, TOKENS, generator(seed))


def transformed(name, given):
    return find("transform", "text", name)()(given, TOKENS, generator(1))


def test_chosen_places_are_ordinary_tokens_and_every_row_has_one():
    given = draft(400)
    assert not (given.chosen & ~given.open).any()
    assert given.chosen.any(1).all()
    assert not torch.isin(given.original[given.chosen], torch.tensor(TOKENS.special)).any()
    many = text_draft(
        given.original.repeat(20, 1), given.mask.repeat(20, 1), given.labels.repeat(20), TOKENS, generator()
    )
    alone = 0.85 ** many.open.sum(1).float()  # a row without a lot gets one place all the same
    expected = 0.15 + (alone / many.open.sum(1)).mean()
    assert abs(many.chosen.sum() / many.open.sum() - expected) < 0.01


@pytest.mark.parametrize("name", ["none", "replace", "mask", "bert", "noise"])
def test_transforms_change_chosen_places_alone(name):
    given = draft()
    found = transformed(name, given)
    assert torch.equal(found.inputs[~given.chosen], given.original[~given.chosen])
    assert torch.equal(found.original, given.original)
    assert bool(found.noise.any()) == (name == "noise")


def test_bert_masks_replaces_and_keeps():
    given = draft(3000)
    found = transformed("bert", given).inputs[given.chosen]
    before = given.original[given.chosen]
    masked, kept = (found == TOKENS.mask).float().mean(), (found == before).float().mean()
    assert abs(masked - 0.8) < 0.02
    assert abs(kept - 0.1 - 0.1 / (TOKENS.size - 5)) < 0.02
    replaced = transformed("replace", given).inputs
    assert not torch.isin(replaced[given.chosen], torch.tensor(TOKENS.special)).any()
    assert (transformed("mask", given).inputs[given.chosen] == TOKENS.mask).all()


def features(bert, ids, mask, attention):
    with torch.no_grad():
        return bert(ids, mask, View(attention))


@pytest.mark.parametrize("name", ["left-to-right", "right-to-left", "random-factorised"])
def test_places_do_not_depend_on_what_they_do_not_see(bert, name):
    """Over all layers: one token is changed, and only places that see it may answer."""
    given = draft(6)
    seen = find("representation", "text", name)()(given, generator(3))
    attention = given.attention & seen
    assert attention.any(2).all(), "a place is blind"
    before = features(bert, given.inputs, given.mask, attention)
    for place in range(given.inputs.shape[1]):
        ids = given.inputs.clone()
        ids[:, place] = (ids[:, place] + 7) % TOKENS.size
        change = (features(bert, ids, given.mask, attention) - before).abs().amax(2)
        real = given.mask & given.mask[:, place : place + 1]
        sees = attention[:, :, place]
        assert (change[~sees & given.mask] == 0).all(), f"{name}: a place hears of place {place}"
        assert (change[sees & real] > 0).all(), f"{name}: a place does not see place {place}"


def test_directions_are_triangles_and_orders_are_transitive():
    given = draft(8)
    left, right = (find("representation", "text", n)()(given, generator()) for n in ("left-to-right", "right-to-left"))
    assert torch.equal(left, right.transpose(1, 2))
    seen = find("representation", "text", "random-factorised")()(given, generator())
    twice = (seen.float() @ seen.float()) > 0
    assert torch.equal(twice, seen)
    assert (seen | seen.transpose(1, 2)).all()
    assert not seen[:, 1:, 0].any(), "the first token tells nothing"
    assert seen[:, 0].all(), "the first token sees the row"


def test_padding_is_not_seen(bert):
    given = draft(9)
    for name in ("bidirectional", "left-to-right", "random-factorised"):
        seen = find("representation", "text", name)()(given, generator(2))
        attention = given.attention if seen is None else given.attention & seen
        ids = given.inputs.masked_fill(~given.mask, 9)
        first, second = (features(bert, x, given.mask, attention)[given.mask] for x in (given.inputs, ids))
        assert torch.equal(first, second)


def test_a_view_of_everything_is_the_usual_mask(bert):
    given = draft(6)
    with torch.no_grad():
        usual = bert(given.inputs, given.mask)
    viewed = features(bert, given.inputs, given.mask, given.attention)
    torch.testing.assert_close(viewed[given.mask], usual[given.mask], rtol=1e-5, atol=1e-5)


def test_noise_moves_the_chosen_embeddings_alone(bert):
    given = transformed("noise", draft(6))
    diagonal = torch.eye(given.inputs.shape[1], dtype=torch.bool).expand_as(given.attention)
    with torch.no_grad():
        before = bert(given.inputs, given.mask, View(diagonal))
        after = bert(given.inputs, given.mask, View(diagonal, given.noise))
    moved = (before - after).abs().amax(2) > 0
    assert torch.equal(moved, given.chosen)


def answer(output, given, representation="bidirectional"):
    made = find("output", "text", output)()
    shown = find("representation", "text", representation)()
    if (seen := shown(given, generator(4))) is not None:
        given = given.changed(attention=given.attention & seen)
    return made.answers(given, shown), given


def test_denoise_asks_for_the_original_of_chosen_places():
    found, given = answer("denoise", transformed("mask", draft()))
    assert torch.equal(found != IGNORE, given.chosen)
    assert torch.equal(found[given.chosen], given.original[given.chosen])


@pytest.mark.parametrize(("name", "step"), [("left-to-right", 1), ("right-to-left", -1), ("random-factorised", 1)])
def test_next_token_is_a_neighbour_that_is_not_seen(name, step):
    found, given = answer("next-token", draft(60), name)
    rows, places = (found != IGNORE).nonzero(as_tuple=True)
    assert len(rows) > 10
    assert given.chosen[rows, places].all()
    assert torch.equal(found[rows, places], given.original[rows, places + step])
    assert not given.attention[rows, places, places + step].any(), "the answer is seen"
    assert given.open[rows, places + step].all(), "padding and special tokens are not asked for"


def test_real_or_synthetic_and_end_task():
    found, given = answer("real-synthetic", transformed("replace", draft()))
    assert torch.equal(found != IGNORE, given.open)
    assert torch.equal(found == 1, (given.inputs != given.original) & given.open)
    labels, given = answer("end-task", draft())
    assert torch.equal(labels, given.labels)


def test_tf_idf_by_hand():
    task = tiny.suite()["mood"]
    output = find("output", "text", "tf-idf")()
    output.question(task, tiny.suite().spec, [])
    rows = task.rows["train"].inputs
    ids, mask = rows.padded(torch.arange(len(rows)))
    given = text_draft(ids, mask, task.rows["train"].labels, TOKENS, generator())
    found = output.answers(given, find("representation", "text", "bidirectional")())
    texts = [
        rows.values[a:b].tolist() for a, b in zip(rows.offsets[:-1].tolist(), rows.offsets[1:].tolist(), strict=True)
    ]

    def value(token, text):
        documents = sum(token in other for other in texts)
        idf = torch.tensor((1 + len(texts)) / (1 + documents)).log() + 1
        return float(idf * text.count(token) / len(text))

    every = torch.tensor([value(token, text) for text in texts for token in set(text)])
    edges = every.quantile(torch.linspace(0, 1, 9)[1:-1])
    for row, place in given.chosen.nonzero().tolist():
        at = value(int(ids[row, place]), texts[row])
        assert abs(int(found[row, place]) - int(torch.bucketize(torch.tensor(at), edges))) <= int(
            bool((edges - at).abs().min() < 1e-5)
        )


def test_all_rows_of_a_step_are_one_part_and_each_sees_its_own_way(bert):
    suite = tiny.suite()
    space = Space("text")
    made = Maker(space, {"task": suite["mood"]}, TOKENS)
    part = merged(made.parts(torch.arange(24), 2, generator())).parts[0]
    assert [member.task for member in part.members] == space.names
    assert part.inputs.shape[0] == 48
    again = merged(made.parts(torch.arange(24), 2, generator())).parts[0]
    assert torch.equal(part.inputs, again.inputs)
    assert torch.equal(part.view.attention, again.view.attention)
    for member in part.members:
        _, transform, representation, output = member.task.split("/")
        seen = part.view.attention[member.rows]
        above = seen.triu(1).any()
        below = seen.tril(-1).any()
        assert (bool(above), bool(below)) == {
            "left-to-right": (False, True), "right-to-left": (True, False),
        }.get(representation, (True, True))  # fmt: skip
        ids = part.inputs[member.rows]
        assert bool((ids == TOKENS.mask).any()) == (transform in ("mask", "bert"))
        assert member.labels.dim() == (2 if output == "denoise" else 1)


def test_widening_leaves_what_rows_see_and_are_asked():
    suite = tiny.suite()
    made = Maker(Space("text"), {"task": suite["mood"]}, TOKENS)
    short = made.parts(torch.tensor([0, 2]), 1, generator(3))[0]
    values = Ragged.of([[2, *range(5, 40), 3]])
    ids, mask = values.padded(torch.tensor([0]))
    batch = merged([Part(ids, mask, ()), short])
    part = batch.parts[0]
    old = short.inputs.shape[1]
    assert part.inputs.shape[1] == ids.shape[1]
    assert torch.equal(part.view.attention[1:, :old, :old], short.view.attention)
    assert not part.view.attention[1:, :old, old:].any()
    assert part.view.attention.any(2).all()
    assert all((m.labels[:, old:] == IGNORE).all() for m in part.members)


def test_decoder_softmax_over_asked_places_alone_and_nothing_asked_is_nothing():
    table = torch.nn.Parameter(torch.randn(11, 6))
    decoder = objectives.Decoder(table, 6)
    vectors = torch.randn(3, 4, 6)
    labels = torch.full((3, 4), IGNORE)
    labels[0, 1], labels[0, 3], labels[2, 0] = 5, 1, 10
    found = decoder(vectors, labels).squeeze(1)
    logits = vectors @ table.T + decoder.bias
    each = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE, reduction="none"
    )
    torch.testing.assert_close(found, each.view(3, 4).sum(1))
    empty = decoder(vectors.requires_grad_(), torch.full((3, 4), IGNORE))
    assert torch.equal(empty, torch.zeros(3, 1))
    empty.sum().backward()
    assert torch.equal(vectors.grad, torch.zeros_like(vectors))
    assert not table.grad.any()


def test_encoders_without_attention_masks_say_so():
    suite = tiny.suite()
    model = SharedModel(encoders.build("textcnn", suite.spec), suite)
    made = Maker(Space("text"), {"task": suite["mood"]}, TOKENS)
    part = merged(made.parts(torch.tensor([2]), 2, generator())).parts[0]
    with pytest.raises(SteelyardError, match="use a Hugging Face encoder"):
        model(Batch((Part(part.inputs, part.mask, (), part.view),)))


def test_texts_longer_than_the_model_are_refused(bert):
    ids = torch.full((1, 65), 6)
    with pytest.raises(SteelyardError, match=r"reads at most 64 tokens.*max_length = 64"):
        bert(ids, torch.ones_like(ids, dtype=torch.bool))


def test_a_tokenizer_without_mask_token_is_refused(tmp_path):
    folder = tiny.write_model(tmp_path / "bert", mask=False)
    with pytest.raises(SteelyardError, match="has no mask token"):
        encoders.build(str(folder), tiny.suite().spec).tokens()


def test_special_tokens_of_a_folder(bert):
    assert bert.tokens() == TOKENS
