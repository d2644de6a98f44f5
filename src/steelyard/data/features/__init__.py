"""Features: a view of a table becomes token ids, numbers or images, by settings fitted on train alone."""

from __future__ import annotations

from typing import Any

from steelyard.data.features.base import Columns, Featuriser, Pieces, cached
from steelyard.data.features.dense import Dense
from steelyard.data.features.images import Images
from steelyard.data.features.numbers import Numbers
from steelyard.data.features.subwords import Subwords
from steelyard.data.features.words import Words

__all__ = [
    "Columns",
    "Dense",
    "Featuriser",
    "Images",
    "Numbers",
    "Pieces",
    "Subwords",
    "Words",
    "cached",
    "from_json",
]

FEATURISERS: dict[str, type[Featuriser]] = {
    "dense": Dense,
    "images": Images,
    "numbers": Numbers,
    "subwords": Subwords,
    "words": Words,
}


def from_json(settings: dict[str, Any]) -> Featuriser:
    """The inverse of a featuriser's ``to_json``."""
    return FEATURISERS[settings["kind"]].from_json(settings)
