"""The traps: what looks like a layer with a rule and is more, or less."""

import gc
import logging
import weakref
from types import SimpleNamespace

import pytest
import torch
from tests.gradients.gradient_checks import check, close, task_losses
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from steelyard import gradients
from steelyard.gradients._graph import nested, places

ROWS = torch.tensor([0, 0, 1, 1, 2, 2])


def floats(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


class Tokens(nn.Module):
    """Embeddings of words and of positions that are looked up once for all rows."""

    def __init__(self, flat: bool = False, take: bool = False) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(11, 4), nn.Embedding(6, 4)
        self.mix = nn.Linear(4, 4)
        self.flat, self.take = flat, take

    def forward(self, x: Tensor) -> Tensor:
        where = torch.arange(x.shape[1])
        place = self.places(where if self.flat else where.unsqueeze(0))
        if self.take:
            place = place[0]
        return self.mix((self.words(x) + place).tanh())


def test_positions_looked_up_once_for_all_rows() -> None:
    module = Tokens().double()
    x = torch.randint(0, 11, (6, 5))
    check(module, lambda: module(x), ROWS, 3)


def test_positions_without_a_row_dimension() -> None:
    module = Tokens(flat=True).double()
    x = torch.randint(0, 11, (6, 5))
    check(module, lambda: module(x), ROWS, 3)


@pytest.mark.parametrize("flat", [True, False])
def test_positions_as_long_as_the_batch_are_not_taken_for_rows(flat: bool) -> None:
    module = Tokens(flat=flat).double()
    for length in (6, 5, 6):
        x = torch.randint(0, 11, (6, length))
        check(module, lambda x=x: module(x), ROWS, 3)


def test_a_broadcast_lookup_of_which_one_row_is_taken_has_no_rule() -> None:
    module = Tokens(take=True).double()
    for length in (5, 6):
        x = torch.randint(0, 11, (6, length))
        check(module, lambda x=x: module(x), ROWS, 3, slow={"places.weight"})


@pytest.mark.parametrize("use", ["sum", "repeat", "dropout", "twice"])
def test_recording_does_not_change_what_a_lookup_gives(use: str) -> None:
    """Anything may be done with a lookup of shape [1, L, d]; it must see that shape while it is recorded, too."""

    class Odd(Tokens):
        def forward(self, x: Tensor) -> Tensor:
            place = self.places(torch.arange(x.shape[1]).unsqueeze(0))
            given = {
                "sum": lambda: place + place.square().sum(),
                "repeat": lambda: place.repeat(len(x), 1, 1),
                "dropout": lambda: F.dropout(place, 0.5),
                "twice": lambda: place * place[:, :1],
            }[use]()
            return self.mix((self.words(x) + given + place).tanh())

    module, x = Odd().double(), torch.randint(0, 11, (6, 5))
    torch.manual_seed(7)
    plain = module(x)
    torch.manual_seed(7)
    with gradients.record(module, ROWS):
        torch.testing.assert_close(module(x), plain, rtol=0, atol=0)
    check(module, lambda: module(x), ROWS, 3, slow={"places.weight"})


class Tied(nn.Module):
    """A decoder that shares the embedding's table, as a layer or functionally."""

    def __init__(self, functional: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 4)
        self.mix = nn.Linear(4, 4)
        self.out = nn.Linear(4, 7, bias=False)
        if functional:
            del self.out
        else:
            self.out.weight = self.table.weight
        self.functional = functional

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.mix(self.table(x)).tanh()
        return F.linear(hidden, self.table.weight) if self.functional else self.out(hidden)


def test_tied_weights_are_summed_over_uses() -> None:
    module = Tied(functional=False).double()
    x = torch.randint(0, 7, (6, 5))
    check(module, lambda: module(x), ROWS, 3)
    check(module, lambda: module(x), ROWS, 3, parameters=["out.weight"])


def test_a_functional_use_beside_the_layer_is_seen() -> None:
    module = Tied(functional=True).double()
    x = torch.randint(0, 7, (6, 5))
    check(module, lambda: module(x), ROWS, 3)


def test_a_use_that_has_no_rule_sends_the_parameter_on_the_exact_path() -> None:
    module = Tied(functional=True).double()
    x = torch.randint(0, 7, (6, 5))
    check(
        module, lambda: module(x) * module.table.weight.exp().sum(1), ROWS, 3, slow={"table.weight"}, row_slopes=False
    )


@pytest.mark.parametrize("known", [True, False])
def test_a_functional_use_under_autocast_is_seen_through_the_cast_cache(known: bool) -> None:
    layer = nn.Linear(4, 4, bias=False)
    x = torch.randn(6, 4)
    with gradients.record(layer, ROWS) as tape, torch.autocast("cpu", dtype=torch.bfloat16):
        out = F.linear(layer(x), layer.weight if known else layer.weight * 2)
        losses = task_losses(out.float(), ROWS, 3)
    assert tape.exact_names(losses) == ([] if known else ["weight"])
    exact = gradients.exact_task_gradients(losses, tape.scope.parameters)["weight"]
    close(tape.task_gradients(losses)["weight"], exact, exact.abs().max().item(), 2e-2)


def test_a_layer_called_twice() -> None:
    layer = nn.Linear(4, 4).double()
    x = floats(6, 4)
    check(layer, lambda: layer(layer(x).tanh()), ROWS, 3)


def test_a_raw_parameter_takes_the_exact_path_alone(caplog: pytest.LogCaptureFixture) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(4))
            self.inner = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x) * self.scale.exp()

    module = Scaled().double()
    x = floats(6, 4)
    with caplog.at_level(logging.DEBUG, "steelyard.gradients"):
        check(module, lambda: module(x), ROWS, 3, slow={"scale"})
    assert [record.message.count("scale") for record in caplog.records] == [1]


class Channels(nn.Module):
    """A raw scale and shift per channel, broadcast over the rows and over what stands behind the channels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 2)
        self.scale, self.shift = nn.Parameter(torch.randn(3, 1, 1)), nn.Parameter(torch.randn(1, 3, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return (self.conv(x) * self.scale).tanh() + self.shift


def test_a_raw_scale_per_channel_is_summed_over_positions() -> None:
    module = Channels().double()
    x = floats(6, 2, 4, 5)
    check(module, lambda: module(x), ROWS, 3)
    check(module, lambda: module(x), ROWS, 3, parameters=["scale"])


def test_batch_norm_in_training_mode_is_refused_with_all_names() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4), nn.BatchNorm1d(4))
    with pytest.raises(gradients.RowsMixError, match=r"1, 3.*eval mode"):
        gradients.record(module, ROWS)
    module.eval()
    with gradients.record(module, ROWS):
        pass
    with pytest.raises(gradients.RowsMixError, match="statistics"):
        gradients.record(nn.BatchNorm1d(4, track_running_stats=False).eval(), ROWS)


class Centred(nn.Module):
    """Centres over the batch: each row depends on all."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        return self.last(hidden - hidden.mean(0))


@pytest.mark.parametrize("tasks", [1, 3])
def test_rows_that_mix_are_refused(tasks: int) -> None:
    module, rows = Centred().double(), ROWS.clamp(max=tasks - 1)
    x = floats(6, 4)
    with gradients.record(module, rows) as tape:
        losses = task_losses(module(x), rows, tasks)
    with pytest.raises(gradients.RowsMixError, match="rows mix: the output of first"):
        tape.row_slopes(losses, {})


def test_losses_that_use_rows_of_other_tasks_are_refused() -> None:
    layer = nn.Linear(4, 4).double()
    with gradients.record(layer, ROWS) as tape:
        losses = task_losses(layer(floats(6, 4)), ROWS.flip(0), 3)
    with pytest.raises(gradients.RowsMixError, match="losses"):
        tape.gram(losses)


def test_a_sequence_that_comes_first_and_is_as_long_as_the_batch() -> None:
    class First(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.last = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.inner(x.transpose(0, 1)).tanh().mean(0))

    module = First().double()
    long, square = floats(6, 5, 4), floats(6, 6, 4)
    check(module, lambda: module(square), ROWS, 3)
    check(module, lambda: module(long), ROWS, 3)
    check(module, lambda: module(square), ROWS, 3)


@pytest.mark.parametrize("position_major", [False, True])
def test_rows_flattened_with_positions(position_major: bool) -> None:
    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            x = x.transpose(0, 1) if position_major else x
            out = self.inner(x.reshape(-1, 4)).reshape(x.shape)
            return out.transpose(0, 1) if position_major else out

    module = Flat().double()
    x = floats(6, 3, 4)
    check(module, lambda: module(x), ROWS, 3)


def test_an_output_changed_in_place_and_by_a_hook() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4)).double()
    module[0].register_forward_hook(lambda _layer, _args, out: out * 3)
    x = floats(6, 4)
    check(module, lambda: module(x), ROWS, 3)


def test_an_input_changed_in_place_afterwards_is_not_used_silently() -> None:
    layer = nn.Linear(4, 4).double()
    x = floats(6, 4)
    with gradients.record(layer, ROWS) as tape:
        losses = task_losses(layer(x), ROWS, 3)
    x.add_(1)
    with pytest.raises(RuntimeError, match="inplace operation"):
        tape.task_gradients(losses)


def test_reparametrised_and_patched_layers_are_not_taken_for_what_they_were() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)).double()
    parametrizations.weight_norm(module[0])
    plain = module[1].forward
    module[1].forward = lambda x: plain(x) * 2
    x = floats(6, 4)
    slow = {name for name, _ in module.named_parameters() if "original" in name}
    check(module, lambda: module(x), ROWS, 3, slow=slow)


def test_a_subclass_counts_only_if_it_inherits_forward() -> None:
    class Same(nn.Linear):
        pass

    class Other(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return F.linear(x, self.weight.square(), self.bias.square())

    module = nn.Sequential(Same(4, 4), Other(4, 4)).double()
    x = floats(6, 4)
    check(module, lambda: module(x), ROWS, 3, slow={"1.weight", "1.bias"})


def test_frozen_and_unused_parameters() -> None:
    module = nn.ModuleDict({"used": nn.Linear(4, 4), "frozen": nn.Linear(4, 4), "idle": nn.Linear(4, 4)}).double()
    module["frozen"].requires_grad_(requires_grad=False)
    x = floats(6, 4)
    found = check(module, lambda: module["frozen"](module["used"](x)), ROWS, 3)
    assert set(found) == {"used.weight", "used.bias", "idle.weight", "idle.bias"}
    assert not found["idle.weight"].any()
    assert list(found.stored()) == ["used.weight", "used.bias"]


def test_heads_inside_the_module_see_only_their_rows() -> None:
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(4, 4)
            self.heads = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            z = self.body(x).tanh()
            return torch.cat([head(z[task == ROWS]) for task, head in enumerate(self.heads)])

    module = Heads().double()
    x = floats(6, 4)
    slow = {name for name, _ in module.named_parameters() if name.startswith("heads")}
    check(module, lambda: module(x), ROWS, 3, slow=slow)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_recurrent_dropout_in_training_mode_is_not_run_again(dtype: torch.dtype) -> None:
    layer = nn.LSTM(4, 3, num_layers=2, dropout=0.5, batch_first=True).to(dtype)
    x = floats(6, 5, 4).to(dtype)
    check(layer, lambda: layer(x)[0], ROWS, 3, slow=None)


def test_a_fused_kernel_without_a_rule_takes_the_exact_path() -> None:
    layer = nn.LSTM(4, 3, batch_first=True)
    x, start = torch.randn(6, 5, 4), (torch.ones(1, 6, 3), torch.ones(1, 6, 3))
    check(layer, lambda: layer(x, start)[0], ROWS, 3, slow={name for name, _ in layer.named_parameters()})


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_a_state_that_is_given_is_not_forgotten(dtype: torch.dtype) -> None:
    layer = nn.GRU(4, 3, batch_first=True).to(dtype)
    x = floats(6, 5, 4).to(dtype)
    check(layer, lambda: layer(x, torch.ones(1, 6, 3, dtype=dtype))[0], ROWS, 3, slow=None)


def test_unknown_names_shapes_and_rows_are_refused() -> None:
    layer = nn.Linear(4, 4)
    with pytest.raises(ValueError, match="no such parameters in Linear: wieght"):
        gradients.record(layer, ROWS, ["wieght"])
    with pytest.raises(TypeError, match="iterable"):
        gradients.record(layer, ROWS, "weight")
    with pytest.raises(ValueError, match="LongTensor"):
        gradients.record(layer, torch.rand(3))
    with gradients.record(layer, ROWS, ["weight"]) as tape:
        losses = task_losses(layer(torch.randn(6, 4)), ROWS, 3)
    with pytest.raises(ValueError, match="not in the parameter scope: bias"):
        tape.slopes(losses, {"bias": torch.ones(4)})
    with pytest.raises(ValueError, match="has shape"):
        tape.slopes(losses, {"weight": torch.ones(4)})
    with pytest.raises(ValueError, match="2 losses"):
        tape.slopes(losses[:2], {})


def test_slopes_of_rows_with_a_parameter_used_after_the_output_are_refused() -> None:
    layer = nn.Linear(4, 4).double()
    with gradients.record(layer, ROWS) as tape:
        losses = task_losses(layer(floats(6, 4)) @ layer.weight.exp(), ROWS, 3)
    with pytest.raises(gradients.GradientError, match="weight"):
        tape.row_slopes(losses, {"weight": floats(4, 4)})


def test_a_part_of_a_layer_sent_on_the_exact_path() -> None:
    layer = nn.Linear(4, 4).double()
    with gradients.record(layer, ROWS, exact=["weight"]) as tape:
        losses = task_losses(layer(floats(6, 4)), ROWS, 3)
    assert tape.exact_names(losses) == ["weight"]
    exact = gradients.exact_task_gradients(losses, tape.scope.parameters)
    torch.testing.assert_close(dict(tape.task_gradients(losses)), exact)


def test_outputs_computed_from_each_other_are_seen() -> None:
    x = floats(6, 4).requires_grad_()
    first = x * 2
    for second, wanted in ((first.sum(1), True), (x * 3, False)):
        call = SimpleNamespace(outputs=places([first, second]), parents=places([x]))
        assert nested(call) is wanted


def test_a_loss_that_is_not_finite_spoils_only_its_task() -> None:
    layer = nn.Linear(4, 4).double()
    with gradients.record(layer, ROWS) as tape:
        losses = task_losses(layer(floats(6, 4)), ROWS, 3) * torch.tensor([1.0, float("nan"), 1.0])
    found = tape.task_gradients(losses)["weight"]
    assert found.isnan().flatten(1).any(1).tolist() == [False, True, False]


def test_losses_that_depend_on_nothing_and_batches_without_rows() -> None:
    layer = nn.Linear(4, 4)
    with gradients.record(layer, ROWS) as tape:
        losses = torch.ones(3)
    assert not tape.task_gradients(losses)["weight"].any()
    assert not tape.slopes(losses, {"weight": torch.ones(4, 4)}).any()
    with gradients.record(layer, torch.zeros(0, dtype=torch.long)) as tape:
        losses = layer(torch.zeros(0, 4)).sum().reshape(1)
    assert not tape.gram(losses).any()


def test_nothing_outlives_the_tape() -> None:
    layer = nn.Sequential(nn.Linear(4, 4), nn.GRU(4, 4, batch_first=True))
    gc.collect()
    gc.disable()
    try:
        with gradients.record(layer, ROWS) as tape:
            out = layer(torch.randn(6, 3, 4))[0]
            losses = task_losses(out, ROWS, 3)
        tape.task_gradients(losses)
        tape.row_slopes(losses, {"0.weight": torch.ones(4, 4)})
        left = weakref.ref(out)
        del out, losses, tape
        assert left() is None
    finally:
        gc.enable()
