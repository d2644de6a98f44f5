"""Encoders of numbers and images: values against torch's own functions."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from steelyard.encoders import MLP, LeNet, ResNet
from steelyard.errors import SteelyardError


def test_mlp_value_on_rows_of_any_shape() -> None:
    encoder = MLP((2, 3), hidden=(5, 4))
    inputs = torch.randn(7, 2, 3)
    first, shift, second, bias = encoder.parameters()
    expected = ((inputs.flatten(1) @ first.T + shift).clamp(min=0) @ second.T + bias).clamp(min=0)
    torch.testing.assert_close(encoder(inputs), expected)
    assert encoder.width == 4


def test_mlp_drops_values_in_training_alone() -> None:
    encoder = MLP((3,), hidden=(50,), dropout=0.5)
    inputs = torch.ones(1, 3)
    assert not torch.equal(encoder(inputs), encoder(inputs))
    encoder.eval()
    torch.testing.assert_close(encoder(inputs), encoder(inputs))


def test_mlp_without_layers_is_the_flattened_row() -> None:
    encoder = MLP((2, 2), hidden=())
    assert encoder.width == 4
    assert encoder(torch.ones(3, 2, 2)).tolist() == [[1.0] * 4] * 3


def test_lenet_is_the_one_of_multimnist() -> None:
    encoder = LeNet()
    shapes = {name: tuple(p.shape) for name, p in encoder.named_parameters() if name.endswith("weight")}
    assert shapes == {
        "first.weight": (10, 1, 5, 5),
        "second.weight": (20, 10, 5, 5),
        "linear.weight": (50, 320),
    }
    images = torch.randn(2, 1, 28, 28)
    maps = F.max_pool2d(F.conv2d(images, encoder.first.weight, encoder.first.bias), 2).relu()
    maps = F.max_pool2d(F.conv2d(maps, encoder.second.weight, encoder.second.bias), 2).relu()
    expected = F.linear(maps.reshape(2, 320), encoder.linear.weight, encoder.linear.bias).relu()
    torch.testing.assert_close(encoder(images), expected)
    torch.testing.assert_close(encoder(images[:, 0]), expected)


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((3, 32, 20), {}),
        ((8, 8), {"padding": 2}),
        ((1, 17, 16), {"kernel": 3}),
        ((2, 29, 31), {"channels": (3, 4), "hidden": 6}),
    ],
)
def test_lenet_on_other_sizes(shape: tuple[int, ...], options: dict[str, object]) -> None:
    encoder = LeNet(shape, **options)
    assert encoder(torch.randn(2, *shape)).shape == (2, encoder.width)


def test_lenet_on_images_that_are_too_small() -> None:
    with pytest.raises(SteelyardError, match=r"8 x 8 are too small .*padding=2"):
        LeNet((1, 8, 8))


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_resnet_has_the_asked_depth_width_and_norm(norm: str) -> None:
    encoder = ResNet((3, 9, 8), channels=4, stages=2, blocks=2, norm=norm)
    assert encoder(torch.randn(2, 3, 9, 8)).shape == (2, 8)
    assert encoder.width == 8
    assert len(encoder.blocks) == 4
    kinds = {type(m) for m in encoder.modules()} & {nn.BatchNorm2d, nn.GroupNorm}
    assert kinds == {nn.BatchNorm2d if norm == "batch" else nn.GroupNorm}
    convolutions = [m for m in encoder.modules() if isinstance(m, nn.Conv2d)]
    assert [m.stride[0] for m in convolutions] == [1, 1, 1, 1, 1, 2, 1, 2, 1, 1]
    assert ResNet((8, 8), channels=4)(torch.randn(2, 8, 8)).shape == (2, 16)


def test_group_norm_keeps_rows_apart() -> None:
    images = torch.randn(3, 3, 8, 8)
    grouped, mixed = ResNet((3, 8, 8), norm="group"), ResNet((3, 8, 8))
    torch.testing.assert_close(grouped(images)[:1], grouped(images[:1]))
    assert not torch.allclose(mixed(images)[:1], mixed(images[:1]))


def test_resnet_block_adds_its_input() -> None:
    encoder = ResNet((1, 4, 4), channels=2, stages=1, blocks=1).eval()
    block = encoder.blocks[0]
    maps = torch.randn(1, 2, 4, 4)
    nn.init.zeros_(block.second.weight)
    torch.testing.assert_close(block(maps), maps.relu())
    with pytest.raises(SteelyardError, match="'batch' or 'group', not 'layer'"):
        ResNet((1, 4, 4), norm="layer")
