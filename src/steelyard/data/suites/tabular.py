"""Tables: multi-label benchmarks, the census, and metals in the soil of the Jura."""

from __future__ import annotations

import bz2
import gzip
import io
import pickle
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from steelyard.data.features.base import Columns
from steelyard.data.suites import pins
from steelyard.data.suites.base import PackagedSuite, Splits, SuiteTask
from steelyard.data.suites.prepared import Part, held_out, prepared
from steelyard.data.suites.rdata import frames
from steelyard.tasks import Kind

if TYPE_CHECKING:
    from numpy.typing import NDArray

SETS = {"yeast": 14, "scene": 6, "emotions": 6, "mediamill": 101, "tmc2007": 22}
"""The number of labels of each."""


class _NumpyOnly(pickle.Unpickler):
    """Reads arrays, and refuses everything else that a pickle could do."""

    ALLOWED = frozenset(
        {
            ("numpy.core.multiarray", "_reconstruct"),
            ("numpy", "ndarray"),
            ("numpy", "dtype"),
            ("_codecs", "encode"),
        }
    )

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.ALLOWED:
            raise pickle.UnpicklingError(f"{module}.{name} is not an array")
        if module == "numpy.core.multiarray":
            return np.ndarray.__reduce__(np.empty(0))[0]
        return super().find_class(module, name)


def _dump(name: str, split: str) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    file = "tmc2007-500" if name == "tmc2007" else name
    with pins.MULTILABEL.opened() as archive:
        raw = archive.read(f"scikit-multilearn-0.0.1/skmultilearn/data/{file}-{split}.dump.bz2")
    loaded = _NumpyOnly(io.BytesIO(bz2.decompress(raw)), encoding="latin1").load()
    return np.asarray(loaded["X"], dtype=np.float64), np.asarray(loaded["y"]).astype(np.int64)


def _multilabel(name: str) -> Mapping[str, Part]:
    """Features in standard deviations of train; official train and test, dev from train."""
    dumps = {split: _dump(name, split) for split in ("train", "test")}
    mean, deviation = dumps["train"][0].mean(0), dumps["train"][0].std(0)
    deviation[deviation == 0] = 1
    parts = {}
    for split, (inputs, labels) in dumps.items():
        scaled = torch.from_numpy(((inputs - mean) / deviation).astype(np.float32))
        columns: dict[str, Any] = {_label(k): labels[:, k].tolist() for k in range(labels.shape[1])}
        parts[split] = Part({**columns, "count": labels.sum(1).tolist()}, {"x": scaled})
    return {**held_out(parts["train"], {"dev": 0.1}, "count"), "test": parts["test"]}


def _label(number: int) -> str:
    return f"label-{number}"


def _load_multilabel(name: str) -> Splits:
    return prepared("multilabel", name, 1, [pins.MULTILABEL], partial(_multilabel, name))


def _multilabel_tasks() -> dict[str, SuiteTask]:
    inputs = Columns(dense="x")
    tasks = {}
    for name, count in SETS.items():
        labels = tuple(_label(k) for k in range(count))
        tasks[name] = SuiteTask(labels, inputs, Kind.MULTILABEL, name)
        tasks |= {f"{name}/{k}": SuiteTask((n,), inputs, Kind.CLASSIFICATION, name) for k, n in enumerate(labels)}
    return tasks


CENSUS = (
    "age", "class_of_worker", "industry", "occupation", "education", "wage_per_hour", "enrolled", "marital",
    "major_industry", "major_occupation", "race", "hispanic", "sex", "union", "unemployment_reason", "employment",
    "capital_gains", "capital_losses", "dividends", "tax_filer", "region_before", "state_before",
    "household_detail", "household", "weight", "migration_msa", "migration_region", "migration_within",
    "same_house", "sunbelt", "employer_size", "parents", "father_birth", "mother_birth", "birth", "citizenship",
    "own_business", "veterans_form", "veterans_benefits", "weeks", "year", "income",
)  # fmt: skip
AMOUNTS = ("age", "wage_per_hour", "capital_gains", "capital_losses", "dividends", "employer_size", "weeks")
GIVEAWAYS = frozenset(
    {"education", "marital", "tax_filer", "household_detail", "household", "parents", "weight", "income"}
)
"""The labels, what gives them away, and the sampling weight: never inputs."""

CENSUS_INPUTS = tuple(name for name in CENSUS if name not in GIVEAWAYS)
DEGREES = ("Some college", "Associates", "Bachelors", "Masters", "Prof school", "Doctorate")


def _census() -> Mapping[str, Part]:
    parts = {}
    with pins.CENSUS.opened() as archive:
        for split, ending in (("train", "data"), ("test", "test")):
            raw = gzip.decompress(archive.read(f"mtrec-0.0.1/test/data/census/census-income.{ending}.gz"))
            rows = [line.rstrip(".").split(", ") for line in raw.decode().splitlines() if line.strip()]
            parts[split] = _census_part(dict(zip(CENSUS, zip(*rows, strict=True), strict=True)))
    return {**held_out(parts["train"], {"dev": 0.1}, "income"), "test": parts["test"]}


def _census_part(cells: Mapping[str, tuple[str, ...]]) -> Part:
    # Codes of categories look like numbers; the mark keeps them apart.
    columns: dict[str, list[Any]] = {
        name: [float(c) for c in cells[name]] if name in AMOUNTS else [f"is {c}" for c in cells[name]]
        for name in CENSUS_INPUTS
    }
    columns["income"] = ["above 50k" if c.startswith("50000+") else "below 50k" for c in cells["income"]]
    columns["never_married"] = ["never" if c == "Never married" else "ever" for c in cells["marital"]]
    columns["college"] = ["college" if c.startswith(DEGREES) else "none" for c in cells["education"]]
    return Part(columns)


def _load_census(table: str) -> Splits:
    return prepared("census", table, 1, [pins.CENSUS], _census)


METALS = ("Cd", "Co", "Cr", "Cu", "Ni", "Pb", "Zn")


def _jura() -> Mapping[str, Part]:
    """Metals in standard deviations of train."""
    tables = frames(pins.JURA.read("jura.rda"))
    train, test = tables["prediction.dat"], tables["validation.dat"]
    parts = {}
    for split, rows in (("train", train), ("test", test)):
        columns: dict[str, list[Any]] = {name: rows[name] for name in ("Xloc", "Yloc")}
        columns |= {name: [f"is {v}" for v in rows[name]] for name in ("Landuse", "Rock")}
        for metal in METALS:
            scale = np.asarray(train[metal])
            columns[metal] = ((np.asarray(rows[metal]) - scale.mean()) / scale.std()).tolist()
        parts[split] = Part(columns)
    return {**held_out(parts["train"], {"dev": 0.15}, "Landuse"), "test": parts["test"]}


def _load_jura(table: str) -> Splits:
    return prepared("jura", table, 1, [pins.JURA], _jura)


PLACE = Columns(numbers=("Xloc", "Yloc", "Landuse", "Rock"))

SUITES = (
    PackagedSuite(
        name="multilabel",
        summary="the Mulan benchmarks yeast, scene, emotions, mediamill, tmc2007; each label is a task too (yeast/3)",
        owner="authors of Mulan and of each set",
        licence="BSD (package)",
        tasks=_multilabel_tasks(),
        load=_load_multilabel,
        packages=dict.fromkeys(SETS, (pins.MULTILABEL,)),
        counts={
            "yeast": {"train": 1_350, "dev": 150, "test": 917},
            "scene": {"train": 1_090, "dev": 121, "test": 1_196},
            "emotions": {"train": 352, "dev": 39, "test": 202},
            "mediamill": {"train": 27_894, "dev": 3_099, "test": 12_914},
            "tmc2007": {"train": 19_367, "dev": 2_152, "test": 7_077},
        },
    ),
    PackagedSuite(
        name="census",
        summary="Census-Income (KDD): income above 50k, never married, college; without what gives them away",
        owner="US Census Bureau; UCI",
        licence="Apache-2.0 (package); data: UCI, CC BY 4.0",
        tasks={
            name: SuiteTask((name,), Columns(numbers=CENSUS_INPUTS), Kind.CLASSIFICATION, "people", "auroc")
            for name in ("income", "never_married", "college")
        },
        load=_load_census,
        packages={"people": (pins.CENSUS,)},
        counts={"people": {"train": 179_571, "dev": 19_952, "test": 99_762}},
        main="income",
    ),
    PackagedSuite(
        name="jura",
        summary="seven metals in the soil of the Swiss Jura, from place, land use and rock",
        owner="J.-P. Dubois, O. Atteia, R. Webster; P. Goovaerts",
        licence="GPL-2+ (Debian package)",
        tasks={
            **{metal: SuiteTask((metal,), PLACE, Kind.REGRESSION, "soil") for metal in METALS},
            "all": SuiteTask(METALS, PLACE, Kind.REGRESSION, "soil"),
        },
        load=_load_jura,
        packages={"soil": (pins.JURA,)},
        main="Cd",
        counts={"soil": {"train": 220, "dev": 39, "test": 100}},
    ),
)
