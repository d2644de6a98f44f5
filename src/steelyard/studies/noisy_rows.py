"""Study ``noisy-rows``: do weights per example find wrong labels in a source?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from steelyard.studies.base import Findings, Settings, Study, Table
from steelyard.studies.results import Key, Results, Value

WAYS: Mapping[str, dict[str, Any] | None] = {
    "accumulated, train": {"level": "example"},
    "accumulated, dev_meta": {"level": "example", "role": "dev_meta"},
    "accumulated, train, every row": {"level": "example", "fresh": 1.0},
    "accumulated, train, every row, dot": {"level": "example", "signal": "dot", "fresh": 1.0},
    "as published": {"level": "example", "as_published": True},
    "the row's own loss": None,
}
"""TAWT's options; or, as a control, the loss that uniform training leaves on the row."""

ENOUGH = 0.8


class NoisyRows(Study):
    """Fifty digits, and a source of the same question in which some labels are wrong."""

    name = "noisy-rows"
    summary = "do weights per example find wrong labels in a source?"
    paper = "Chen et al. 2022, Figure 2 weighs examples, but looks at accuracy alone"
    settings: ClassVar = {
        "small": {"seeds": 2, "rates": [0.2], "epochs": 5, "rows": 200},
        "full": {"seeds": 10, "rates": [0.1, 0.2, 0.4], "epochs": 10, "rows": 500},
    }
    minutes: ClassVar = {"small": 0.2, "full": 3}

    def keys(self, settings: Settings) -> list[Key]:
        """Every way with every rate and seed."""
        return [
            {"rate": rate, "way": way, "seed": seed}
            for rate in settings["rates"]
            for way in WAYS
            for seed in range(settings["seeds"])
        ]

    @staticmethod
    def measure(settings: dict[str, Any], **key: Any) -> Value:
        """How well the rows' weights tell right labels from wrong ones (AUROC), and the target's test accuracy."""
        import torch
        from sklearn.metrics import roc_auc_score

        from steelyard import fit
        from steelyard.data.generators import with_noise
        from steelyard.methods import get
        from steelyard.studies.three_sources import noisy_digits
        from steelyard.tasks import Role

        clean = noisy_digits(key["seed"], source_rows=settings["rows"])
        suite = with_noise(clean, {"source": key["rate"]}, seed=key["seed"])
        before, after = (torch.as_tensor(each["source"].rows[Role.TRAIN].labels) for each in (clean, suite))
        options = WAYS[key["way"]]
        method = get("uniform")() if options is None else get("tawt")(**options)
        run = fit(
            suite, "mlp", method, encoder_options={"hidden": [64]}, epochs=settings["epochs"], batch_size=16,
            learning_rate=3e-3, seed=key["seed"], progress=False,
        )  # fmt: skip
        scores = method.state["units"] if options is not None else -_losses(run, suite["source"])
        return {
            "auroc": float(roc_auc_score((before == after).numpy(), scores.numpy())),
            "accuracy": run.metrics["test"]["accuracy"],
        }

    def findings(self, settings: Settings, results: Results) -> Findings:
        """A row for each way and rate."""
        rows = []
        for rate in settings["rates"]:
            for way in WAYS:
                own = results.where(rate=rate, way=way)
                gain = results.gain("accuracy", {"way": way}, {"way": "the row's own loss"}, rate=rate)
                cells = [str(own.estimate("auroc")), str(own.estimate("accuracy"))]
                rows.append([f"{rate:.0%}", way, *cells, gain.signed if WAYS[way] is not None else ""])
        columns = ("wrong labels", "way", "AUROC", "test accuracy", "against uniform weights")
        enough = [way for way in WAYS if results.estimate("auroc", way=way, rate=0.2).mean >= ENOUGH]
        return Findings(
            f"With 20 % wrong labels an AUROC of {ENOUGH} or more: {'; '.join(enough) or 'none'}.",
            [Table("weights of right rows against wrong ones", columns, rows)],
        )


def _losses(run: Any, task: Any) -> Any:
    """Each training row's loss under the trained model."""
    from steelyard.tasks import Role

    rows = task.rows[Role.TRAIN]
    return task.loss(run.outputs(rows.inputs, "source"), rows.labels)[0]
