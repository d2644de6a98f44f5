"""TAWT for a training loop of your own: plain PyTorch, nothing else of this library."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from steelyard.errors import SteelyardError
from steelyard.functional import cosine_hypergradient, mirror_descent
from steelyard.methods.tawt import answers, evidence


class TargetWeights:
    """Weights of the sources, from what they answer about the target, or from gradients that your loop has losses for.

        weights = TargetWeights(encoder.parameters(), sources=3)
        weights.look((features, labels), [(features, labels), …])   # before training, on the encoder as it is; or
        weights.observe(target_loss, source_losses)                 # now and then, on rows of its own,
        weights.update()                                            # and say once per epoch
        (weights.mixture * source_losses).sum().backward()

    Gradients are taken by one backward per source, exactly, whatever the model; `steelyard.gradients` does it faster.

    Args:
        parameters: φ: the shared parameters alone, no head.
        sources: How many sources there are.
        accumulate: Use all observations with their standard error (as method ``tawt`` does), or the newest (paper).
        strength: Accumulated: log-weight per standard deviation between sources.
        c: Scale of the signal.
        eta: Step of mirror descent.
        floor: The smallest weight, as a part of an even one.

    Attributes:
        mixture: The sources' weights ``[S]``, summing to 1.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        sources: int,
        *,
        accumulate: bool = True,
        strength: float = 1.5,
        c: float = 1.0,
        eta: float = 1.0,
        floor: float = 0.05,
    ) -> None:
        self._parameters = [p for p in parameters if p.requires_grad]
        if not self._parameters or sources < 1:
            raise SteelyardError("TargetWeights needs trainable shared parameters and at least one source")
        self._accumulate, self._strength, self._c, self._eta, self._floor = (
            accumulate,
            strength,
            c,
            eta,
            floor / sources,
        )
        like = self._parameters[0].detach()
        self.mixture = torch.full((sources,), 1 / sources, device=like.device)
        self._prior = self.mixture
        self._state: dict[str, Tensor] = {}
        evidence.begin(self._state, sources, self.mixture)

    def look(self, target: tuple[Tensor, Tensor], sources: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        """Sets the weights by what the sources' answers say of the target's labels, as method ``tawt`` does by default.

        Args:
            target: The target's features, ``[n, d]``, and labels: classes ``[n]``, or numbers ``[n]`` or ``[n, k]``.
            sources: The same for each source, ``[n_t, d]``. Some two thousand rows of each are enough.

        Returns:
            The weights ``[S]``; `update` moves on from them.
        """
        known = [(x.detach().flatten(1), answers.numbers(y)) for x, y in (target, *sources)]
        if len(known) != len(self.mixture) + 1:
            raise SteelyardError(f"TargetWeights has {len(self.mixture)} sources, and was shown {len(sources)}")
        found = answers.told(known[0], known[1:]).to(self.mixture)
        self.mixture = self._prior = mirror_descent(self._prior, found, self._strength, self._floor)
        return self.mixture

    def observe(self, target_loss: Tensor, source_losses: Tensor) -> Tensor:
        """Takes one probe in; no ``.grad`` is touched. Graphs are kept, so the losses may be trained on as well.

        Args:
            target_loss: The target's loss on a batch, a scalar with its graph.
            source_losses: Each source's loss, ``[S]`` with its graph.

        Returns:
            g_t = −c·cos(∇L_0, ∇L_t), ``[S]``.
        """
        target = self._gradient(target_loss)
        sources = torch.stack([self._gradient(loss) for loss in source_losses])
        found = cosine_hypergradient(target, sources, self._c)
        evidence.add(self._state, found, memory=1.0)
        return found

    def update(self) -> Tensor:
        """Moves the weights; returns them, ``[S]``."""
        newest = evidence.latest(self._state).to(self.mixture)
        if self._accumulate:
            effects = evidence.effects(self._state).to(self.mixture)
            self.mixture = mirror_descent(self._prior, effects, self._strength, self._floor)
        else:
            self.mixture = mirror_descent(self.mixture, newest, self._eta, self._floor)
        return self.mixture

    def state_dict(self) -> dict[str, Any]:
        """All that a resumed loop needs."""
        own = {"mixture": self.mixture.clone(), "prior": self._prior.clone()}
        return {**own, **{name: value.clone() for name, value in self._state.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes `state_dict` of another."""
        self.mixture, self._prior = state["mixture"].clone(), state["prior"].clone()
        self._state = {name: value.clone() for name, value in state.items() if name not in ("mixture", "prior")}

    def _gradient(self, loss: Tensor) -> Tensor:
        """∇_φ of a loss, ``[P]``; zeros for parameters that it does not use."""
        found = torch.autograd.grad(
            loss, self._parameters, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        return torch.cat([gradient.flatten() for gradient in found])
