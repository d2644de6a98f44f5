"""Study ``controls``: what sources are worth on digits, with every control that looks at no data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from steelyard.studies.base import Findings, Settings, Size, Study
from steelyard.studies.results import Key, Results, Value
from steelyard.studies.tables import comparison

METHODS = ("single", "uniform", "joint", "ramp", "random")


class Controls(Study):
    """A target of 50 digits, three sources that help and one with shuffled labels, under weights that learn nothing."""

    name = "controls"
    summary = "what sources are worth on digits under weights that look at no data"
    settings: ClassVar[Mapping[Size, Settings]] = {
        "small": {"seeds": 3, "epochs": 5},
        "full": {"seeds": 10, "epochs": 30},
    }
    minutes: ClassVar[Mapping[Size, float]] = {"small": 0.3, "full": 2}

    def keys(self, settings: Settings) -> list[Key]:
        """Every method with every seed."""
        return [{"method": method, "seed": seed} for method in METHODS for seed in range(settings["seeds"])]

    @staticmethod
    def measure(settings: dict[str, Any], **key: Any) -> Value:
        """The target's test accuracy after one run; the single task takes as many steps as the others."""
        from steelyard import data, fit
        from steelyard.methods import get

        method = get(key["method"])(**({"matched": True} if key["method"] == "single" else {}))
        run = fit(
            data.suites.demo(key["seed"]), "mlp", method, progress=False,
            epochs=settings["epochs"], batch_size=32, learning_rate=2e-3, seed=key["seed"],
        )  # fmt: skip
        return {"accuracy": run.metrics["test"]["accuracy"], "seconds": run.summary["seconds"]}

    def findings(self, settings: Settings, results: Results) -> Findings:
        """The table, and whether sources help."""
        del settings
        gain = results.gain("accuracy", {"method": "uniform"}, {"method": "single"})
        table = comparison("test accuracy of the target", results, "accuracy")
        return Findings(f"Sources with even weights change the target's test accuracy by {gain.signed}.", [table])
