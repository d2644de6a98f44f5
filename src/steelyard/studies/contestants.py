"""What is compared: methods by name, by composition, or of one's own, and the controls that look at no data."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from steelyard import methods
from steelyard.errors import SteelyardError
from steelyard.methods import Composed, Method
from steelyard.tasks import Suite

Given = str | type[Method] | Method | Mapping[str, Any]
"""A method as a user says it: see `contestant`."""

CONTROLS: Mapping[str, Mapping[str, Any]] = {
    "single": {"matched": True},
    "uniform": {},
    "joint": {},
    "ramp": {},
    "random": {},
}
"""With `uniform` every data set counts the same, with `joint` every row; `single` takes as many steps as the others."""

AGAINST = ("uniform", "single")
"""What everything is compared with."""


@dataclass(frozen=True)
class Contestant:
    """A method with its options, as it takes part in a comparison.

    Attributes:
        label: What its rows are called.
        method: A registered name, ``file.py:Class``, ``package.module:Class``, or the class.
        options: Its options.
        control: Whether it is there for the others to be compared with.
    """

    label: str
    method: str | type[Method]
    options: Mapping[str, Any] = field(default_factory=dict)
    control: bool = False

    @property
    def kind(self) -> type[Method]:
        """The method's class."""
        return self.method if isinstance(self.method, type) else _found(self.method)

    def build(self, changes: Mapping[str, Any] | None = None) -> Method:
        """A fresh method; changes are by dotted names: ``{"weights.eta": 2.0}``."""
        options = {key: dict(v) if isinstance(v, Mapping) else v for key, v in self.options.items()}
        for name, value in (changes or {}).items():
            side, dot, rest = name.partition(".")
            if dot:
                options[side] = {**options.get(side, {}), rest: value}
            else:
                options[name] = value
        return self.kind(**options)

    def about(self) -> dict[str, Any]:
        """What makes two contestants the same, in plain values."""
        return {"method": self.kind.name, "options": self.build().options.model_dump(mode="json")}


def contestant(given: Given) -> Contestant:
    """A contestant from what a user has written.

    Args:
        given: A name (``tawt``, ``tawt+pcgrad``), also with options (``tawt:eta=2.0:c=10``); ``file.py:Class`` or
            ``package.module:Class`` for a method of one's own; a class; a method with its options; or a mapping as in
            `methods.build`, with its ``label`` if it is to have one.
    """
    if isinstance(given, str):
        return _written(given)
    if isinstance(given, type) and issubclass(given, Method):
        return Contestant(given.name, given)
    if isinstance(given, Method):
        return _of(given, given.name)
    if isinstance(given, Mapping):
        table = dict(given)
        label = table.pop("label", None)
        method = methods.build(table)
        return _of(method, label or method.name)
    raise SteelyardError(f"compare: {given!r} is not a method; give a name, a class, a method, or a table")


def contestants(given: Sequence[Given], controls: bool, suite: Suite, training: Mapping[str, Any]) -> list[Contestant]:
    """Controls first, then what was asked for; what was asked for by name is no control."""
    asked = [contestant(each) for each in given]
    labels = [each.label for each in asked]
    twins = sorted({label for label in labels if labels.count(label) > 1})
    if twins:
        raise SteelyardError(f"compare: two methods are called {twins[0]!r}; give each its own label")
    if not asked:
        raise SteelyardError("compare: there is no method to compare; name at least one (--methods tawt,alphavil)")
    found = [
        Contestant(name, name, options, control=True)
        for name, options in CONTROLS.items()
        if controls and name not in labels and _applies(name, suite, training)
    ]
    for each in [*found, *asked]:
        if each.build().needs_target and suite.target is None:
            raise SteelyardError(f"method {each.label!r} needs a target; name one: Suite(tasks, target=…)")
    return found + asked


def _applies(control: str, suite: Suite, training: Mapping[str, Any]) -> bool:
    """Whether a control makes sense: `ramp` raises the target's weight in joint training, `single` needs a target."""
    if control == "ramp" and training.get("paradigm") in ("pretrain", "single"):
        return False
    return suite.target is not None or not methods.get(control).needs_target


def _of(method: Method, label: str) -> Contestant:
    options = method.options.model_dump(exclude_unset=True)
    if isinstance(method, Composed):  # a class made on the way, which other processes make from its name
        options = {key: side.model_dump(exclude_unset=True) for key, side in method.options}
        return Contestant(label, method.name, options)
    registered = method.name in methods.names() and methods.get(method.name) is type(method)
    return Contestant(label, method.name if registered else type(method), options)


def _written(text: str) -> Contestant:
    parts = [part.strip() for part in text.split(":")]
    name = ":".join(part for part in parts if "=" not in part)
    options: dict[str, Any] = {}
    for part in parts:
        key, equals, value = part.partition("=")
        if equals:
            *sides, last = key.strip().split(".")
            place = options.setdefault(sides[0], {}) if sides else options
            place[last] = _value(value)
    made = Contestant(text, name, options)
    made.build()
    return made


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _found(name: str) -> type[Method]:
    place, colon, attribute = name.rpartition(":")
    if not colon:
        return methods.get(name)
    module = _from_file(Path(place)) if place.endswith(".py") else _imported(place, name)
    found = getattr(module, attribute, None)
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise SteelyardError(f"{place} has no method class {attribute!r}; write file.py:Class")
    return found


def _imported(place: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        raise SteelyardError(f"method {name!r}: {error}") from None


def _from_file(path: Path) -> ModuleType:
    """A module from a file, once for each process."""
    if not path.exists():
        raise SteelyardError(f"{path}: there is no such file")
    name = f"steelyard_file_{path.stem}"
    if name not in sys.modules or sys.modules[name].__file__ != str(path.resolve()):
        spec = importlib.util.spec_from_file_location(name, path.resolve())
        if spec is None or spec.loader is None:
            raise SteelyardError(f"{path}: not a Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]
