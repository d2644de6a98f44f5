"""AdvMTL: adversarial multi-task learning (Liu, Qiu and Huang, ACL 2017)."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import normalize

from steelyard.gradients import pure
from steelyard.methods import base
from steelyard.methods._adversary import Adversary, Readings, require_one_process, shares
from steelyard.methods.base import Method, Search
from steelyard.methods.job import Job
from steelyard.model import SharedModel, names
from steelyard.tasks import Batch


class Adversarial(Method):
    """A shared encoder that hides which task a row belongs to, beside one private encoder per task.

    A task's outputs are what its head makes of [s; p], shared and private features (as the sum of a head on s and
    one on p). Minimised are the weighted losses, the loss of a linear discriminator of tasks on s whose gradient
    reaches the shared encoder reversed, λ times, and γ·Σ_t ‖S_tᵀP_t‖²_F, which keeps the two kinds of features apart.
    """

    name = "adversarial"
    summary = "shared features that hide the task, beside private encoders that know it"
    paper = "Liu, Qiu and Huang 2017, Adversarial Multi-task Learning for Text Classification"
    scale_free = False
    search: ClassVar[Search] = {"reversal": (0.01, 0.05, 0.2), "orthogonality": (0.001, 0.01)}
    cost = "2 steps, and the parameters of an encoder per task"

    class Options(base.Options):
        """Options of `Adversarial`."""

        reversal: float = Field(default=0.05, ge=0, description="λ: the reversed gradient of the discriminator")
        orthogonality: float = Field(default=0.01, ge=0, description="γ: shared and private features apart")
        as_published: bool = Field(
            default=False, description="SᵀP is a sum over rows as they are (paper), or a mean over rows of length one"
        )

    options: Options

    def adapt(self, model: SharedModel) -> None:
        """A private network per task, which begins as a copy of the shared one; and the discriminator."""
        if "private" not in dict(model.named_children()):
            model.add_module("private", Private(model))
        model.add_module("method", Adversary(model))

    def start(self, job: Job) -> None:
        """The paradigm's weights."""
        require_one_process(self.name)
        super().start(job)

    def step(self, job: Job) -> None:
        """One step on losses, discriminator and penalty together."""
        private, adversary = job.model.get_submodule("private"), job.model.get_submodule("method")
        assert isinstance(private, Private)  # noqa: S101  `adapt` made both
        assert isinstance(adversary, Adversary)  # noqa: S101

        batch = job.batch()
        whole: dict[str, Tensor] = {}

        def penalty(part: Batch) -> Tensor:
            against = adversary.penalty(part, batch, self.options.reversal)
            products = self._products(part, batch, adversary.readings, private.readings)
            if part is not batch and not whole:  # the norm of a sum over micro-batches: each has to know the sum
                with torch.no_grad(), pure(job.model, "keep"):
                    job.model(batch)
                whole.update(self._products(batch, batch, adversary.readings, private.readings))
            total = whole or {task: product.detach() for task, product in products.items()}
            # The gradient of ‖Σ SᵀP‖²_F, whose value nobody reads.
            slopes = [2 * (total[task] * product).sum() for task, product in products.items()]
            return against + self.options.orthogonality * torch.stack(slopes).sum()

        with adversary.readings.listening(), private.readings.listening():
            self.descend(job, batch, self.weights, penalty=penalty)

    def _products(self, part: Batch, batch: Batch, shared: Readings, private: Readings) -> dict[str, Tensor]:
        """Each task's SᵀP over a part of the batch: a share of the mean over rows of length one, or of the sum."""
        own, common, share = private.take(part), shared.take(part), shares(part, batch)
        if self.options.as_published:
            return {task: common[task].float().T @ rows.float() for task, rows in own.items()}
        return {
            task: normalize(common[task].float()).T @ normalize(rows.float()) * (share[task] / len(rows))
            for task, rows in own.items()
        }


class Private(nn.Module):
    """A network per task, whose outputs are added to the shared model's.

    Attributes:
        readings: What their heads read.
    """

    def __init__(self, model: SharedModel) -> None:
        super().__init__()
        self.networks, self.readings = nn.ModuleDict(), Readings()
        for task in model.tasks:
            network = copy.deepcopy(model)
            network.heads = nn.ModuleDict({names.key(task): network.head(task)})
            self.readings.of(task, network.head(task))
            self.networks[names.key(task)] = network
        model.register_forward_hook(self._add)

    def _add(self, model: nn.Module, given: tuple[Batch], outputs: dict[str, Tensor]) -> dict[str, Tensor]:
        del model
        found = dict(outputs)
        for part in given[0].parts:
            for member in part.members:
                rows = member.rows
                own = replace(
                    part,
                    inputs=part.inputs[rows],
                    mask=None if part.mask is None else part.mask[rows],
                    members=(replace(member, rows=slice(0, rows.stop - rows.start)),),
                )
                found[member.task] = (
                    found[member.task] + self.networks[names.key(member.task)](Batch((own,)))[member.task]
                )
        return found
