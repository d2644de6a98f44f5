"""The TOML file: what it may say, and what it comes to."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from steelyard import encoders, methods
from steelyard.data import FeatureOptions, SourceData, TargetData
from steelyard.data.paths import place
from steelyard.errors import SteelyardError, did_you_mean
from steelyard.methods import Method
from steelyard.training import Training


class ModelTable(BaseModel):
    """The table ``[model]``: an encoder and its own options."""

    model_config = ConfigDict(extra="allow", frozen=True)

    encoder: str | None = Field(None, description="a built-in encoder, a Hugging Face name or folder, or suite:minilm")

    @property
    def options(self) -> dict[str, Any]:
        """The encoder's options."""
        return dict(self.model_extra or {})


class MethodTable(BaseModel):
    """The table ``[method]``: a method and its own options, or ``weights`` and ``gradients`` (`methods.build`)."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str | None = None

    def build(self) -> Method:
        """The method with its options."""
        named = {} if self.name is None else {"name": self.name}
        return methods.build(named | (self.model_extra or {}))


class Config(BaseModel):
    """A whole TOML file."""

    model_config = ConfigDict(extra="forbid")

    target: TargetData
    source: list[SourceData] = []
    features: FeatureOptions = FeatureOptions()
    model: ModelTable = ModelTable()
    method: MethodTable = MethodTable()
    training: Training = Training()


def load(path: Path, changes: dict[str, Any] | None = None) -> Config:
    """Reads a TOML file.

    Args:
        path: The file.
        changes: Values that replace the file's own, by dotted key: ``{"training.epochs": 3}``.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        near = did_you_mean(path.name, (p.name for p in path.parent.glob("*.toml")))
        raise SteelyardError(f"{path}: there is no such file{'; ' + near if near else ''}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise SteelyardError(f"{path}: cannot read it ({error})") from None
    try:
        tables = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits, or brackets in a thousand brackets
        raise SteelyardError(f"{path}: not valid TOML: {error}") from None
    for key, value in (changes or {}).items():
        _set(tables, key.split("."), value)
    try:
        config = Config.model_validate(tables)
    except ValidationError as error:
        raise SteelyardError(f"{path}: {_explained(error)}") from None
    return _with_own_tokenizer(config, path.parent)


def _with_own_tokenizer(config: Config, base: Path) -> Config:
    """An encoder that is not built in reads the sub-words of its own tokenizer; its folder starts at the file."""
    name = config.model.encoder
    if name is None:
        return config
    folder = place(name, base)
    if not encoders.pretrained(name, base):
        return config
    if folder.is_dir():
        name = str(folder.resolve())
    model = config.model.model_copy(update={"encoder": name})
    features = config.features.model_copy(update={"tokenizer": config.features.tokenizer or name})
    return config.model_copy(update={"model": model, "features": features})


def resolved(config: Config, base: Path) -> dict[str, Any]:
    """The configuration with every default said and every file by its full path, as the run folder keeps it."""
    tables = config.model_dump(mode="json")
    for table in (tables["target"], *tables["source"]):
        for key in ("train", "dev", "test"):
            if table[key] is not None and (base / table[key]).exists():
                table[key] = str((base / table[key]).resolve())
    method = config.method.build()
    tables["method"] = {"name": method.name, **method.options.model_dump(mode="json")}
    return tables


def parse_changes(pairs: tuple[str, ...]) -> dict[str, Any]:
    """``training.epochs=3`` on the command line: values are TOML, or plain text."""
    changes: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise SteelyardError(f"--set {pair!r}: write it as key=value, for example training.epochs=3")
        try:
            changes[key.strip()] = tomllib.loads(f"value = {value}")["value"]
        except (ValueError, RecursionError):
            changes[key.strip()] = value
    return changes


def _set(tables: dict[str, Any], keys: list[str], value: Any) -> None:
    for key in keys[:-1]:
        tables = tables.setdefault(key, {})
        if not isinstance(tables, dict):
            raise SteelyardError(f"--set: {'.'.join(keys)} is not a key of a table")
    tables[keys[-1]] = value


def _explained(error: ValidationError) -> str:
    """The first thing that is wrong, as a key of the file."""
    first = error.errors()[0]
    place = [part for part in first["loc"] if part != "function-wrap"]
    where = ".".join(f"[{part}]" if isinstance(part, int) else str(part) for part in place).replace(".[", "[")
    if first["type"] == "extra_forbidden":
        known = _known_keys(place[:-1])
        hint = did_you_mean(str(place[-1]), known) or f"known here: {', '.join(known)}"
        return f"there is no key {where!r}; {hint}"
    if first["type"] == "missing":
        return f"{where} is missing; every configuration needs it"
    return f"{where} = {first['input']!r}: {first['msg'].removeprefix('Value error, ')}"


def _known_keys(place: list[int | str]) -> list[str]:
    tables: dict[str, type[BaseModel]] = {
        "target": TargetData,
        "source": SourceData,
        "features": FeatureOptions,
        "training": Training,
    }
    model = tables.get(str(place[0]), Config) if place else Config
    return list(model.model_fields)
