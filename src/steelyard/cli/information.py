"""``methods`` and ``doctor``."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steelyard.cli.printing import print_json, print_table, say

if TYPE_CHECKING:
    from steelyard.methods import Method


def methods(name: str | None, as_json: bool) -> None:
    """Lists the methods, with what each needs and costs; or tells all about one."""
    from steelyard import methods as room

    if name is not None:
        chosen = room.get(name)
        print_json(_described(name, chosen)) if as_json else _print_method(name, chosen)
        return
    found = {each: room.get(each) for each in room.names()}
    if as_json:
        print_json([_described(each, method) for each, method in found.items()])
        return
    rows = [[each, method.summary, _needs(method), method.cost] for each, method in found.items()]
    print_table("methods", ["name", "what it does", "needs", "cost"], rows)
    say("options of one: steelyard methods NAME")


def _print_method(name: str, method: type[Method]) -> None:
    say(f"{name}: {method.summary}")
    if method.paper:
        say(f"paper: {method.paper}")
    say(f"needs: {_needs(method)}; cost: {method.cost}")
    fields = method.Options.model_fields.items()
    rows = [[key, str(field.default), field.description or ""] for key, field in fields]
    if rows:
        print_table("options", ["name", "default", "means"], rows)
    if method.details():
        say("\n" + method.details())


def _described(name: str, method: type[Method]) -> dict[str, Any]:
    return {
        "name": name,
        "summary": method.summary,
        "paper": method.paper,
        "needs_target": method.needs_target,
        "paradigm": method.paradigm,
        "range": method.range,
        "scale_free": method.scale_free,
        "cost": method.cost,
        "options": {
            key: {"default": field.default, "about": field.description or ""}
            for key, field in method.Options.model_fields.items()
        },
    }


def _needs(method: type[Method]) -> str:
    needs = ["a target"] if method.needs_target else []
    if method.paradigm is not None:
        needs.append(f"paradigm {method.paradigm}")
    return ", ".join(needs) or "nothing"


def doctor(as_json: bool) -> None:
    """Says what this machine has, and what is missing."""
    checks = _checks()
    if as_json:
        print_json({name: {"found": found, "advice": advice} for name, found, advice in checks})
        return
    print_table("doctor", ["what", "found", "advice"], checks)


def _checks() -> list[tuple[str, str, str]]:
    import torch

    accelerators = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        accelerators.append("Apple GPU")
    here = Path.cwd()
    room = shutil.disk_usage(here).free / 2**30
    writable = os.access(here, os.W_OK)
    checks = [
        ("python", platform.python_version(), ""),
        ("steelyard", metadata.version("steelyard"), ""),
        ("torch", torch.__version__, "" if _release(torch.__version__) >= (2, 6) else "needs 2.6 or newer"),
        ("processor", f"{os.cpu_count()} cores, {torch.get_num_threads()} threads in use", ""),
        (
            "accelerator",
            ", ".join(accelerators) or "none",
            "" if accelerators else "small models train well without",
        ),
        ("memory", _memory(), "steelyard advise FILE says what a training takes"),
        ("room on disk", f"{room:.1f} GB", "" if room > 1 else "less than 1 GB: checkpoints may fail"),
        (
            "this folder",
            "writable" if writable else "not writable",
            "" if writable else "runs need --out elsewhere",
        ),
    ]
    for extra, packages in (
        ("text", ("transformers", "datasets", "seqeval")),
        ("scale", ("joblib", "ray", "dask")),
        ("tune", ("optuna",)),
    ):
        missing = [name for name in packages if importlib.util.find_spec(name) is None]
        advice = f"pip install 'steelyard[{extra}]'" if missing else ""
        checks.append((f"extra {extra}", f"missing: {', '.join(missing)}" if missing else "complete", advice))
    trackers = [name for name in ("tensorboard", "mlflow", "wandb") if importlib.util.find_spec(name)]
    checks.append(("trackers", ", ".join(trackers) or "none", ""))
    return checks


def _memory() -> str:
    """What the machine has in all, and what of it is free."""
    page = os.sysconf("SC_PAGE_SIZE") / 2**30
    free = f", {os.sysconf('SC_AVPHYS_PAGES') * page:.1f} GB unused" if "SC_AVPHYS_PAGES" in os.sysconf_names else ""
    return f"{os.sysconf('SC_PHYS_PAGES') * page:.1f} GB{free}"


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("+", maxsplit=1)[0].split(".")[:2])
