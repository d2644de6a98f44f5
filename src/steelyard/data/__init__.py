"""Data: files, names and packaged suites become tasks; readers, features, splits, and what was read."""

from __future__ import annotations

from steelyard.data import cache, generators, suites
from steelyard.data.arrays import from_arrays, from_texts
from steelyard.data.build import Prepared, build
from steelyard.data.examples import examples
from steelyard.data.features import Pieces
from steelyard.data.readers import read
from steelyard.data.recipe import Recipe
from steelyard.data.schema import DataTable, DataWarning, FeatureOptions, SourceData, TargetData
from steelyard.data.summary import Summary
from steelyard.data.table import Table
from steelyard.data.vectors import vectors_file

__all__ = [
    "DataTable",
    "DataWarning",
    "FeatureOptions",
    "Pieces",
    "Prepared",
    "Recipe",
    "SourceData",
    "Summary",
    "Table",
    "TargetData",
    "build",
    "cache",
    "examples",
    "from_arrays",
    "from_texts",
    "generators",
    "read",
    "suites",
    "vectors_file",
]
