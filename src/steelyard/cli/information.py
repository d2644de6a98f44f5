"""``methods`` and ``doctor``."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
from importlib import metadata
from pathlib import Path

from steelyard.cli.printing import print_json, print_table


def methods(as_json: bool) -> None:
    """Lists the methods."""
    from steelyard import methods as room

    found = []
    for name in room.names():
        method = room.get(name)
        options = {
            key: {"default": field.default, "about": field.description or ""}
            for key, field in method.Options.model_fields.items()
        }
        found.append({"name": name, "summary": method.summary, "paper": method.paper, "options": options})
    if as_json:
        print_json(found)
        return
    rows = [
        [
            str(each["name"]),
            str(each["summary"]) + (f"\n{each['paper']}" if each["paper"] else ""),
            "\n".join(f"{key} = {about['default']}" for key, about in each["options"].items()),  # type: ignore[attr-defined]
        ]
        for each in found
    ]
    print_table("methods", ["name", "what it does", "options"], rows)


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
    ):
        missing = [name for name in packages if importlib.util.find_spec(name) is None]
        advice = f"pip install 'steelyard[{extra}]'" if missing else ""
        checks.append((f"extra {extra}", f"missing: {', '.join(missing)}" if missing else "complete", advice))
    trackers = [name for name in ("tensorboard", "mlflow", "wandb") if importlib.util.find_spec(name)]
    checks.append(("trackers", ", ".join(trackers) or "none", ""))
    return checks


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("+", maxsplit=1)[0].split(".")[:2])
