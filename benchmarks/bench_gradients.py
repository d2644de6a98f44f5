"""The gradient engine against plain steps, separate backwards, TorchJD and Opacus, in one interleaved run.

Prints, for each model and number of tasks, CPU and wall time (min and median) as ratios to the plain joint step:
forward, backward of the summed losses, AdamW update. Every other line is a forward plus its question. Each task has
four rows of its own. Memory is the most that torch's allocator held at once above what was there before, as a ratio
to the step's. One thread by default, because with several the CPU seconds count how they wait for each other.

    python benchmarks/bench_gradients.py [--quick] [--models bert textcnn] [--tasks 4 8 24 64] [--rounds 5]
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn

from steelyard import gradients

ROWS_PER_TASK = 4


class TextCNN(nn.Module):
    """Embedding, parallel convolutions, maximum over time."""

    def __init__(self, vocabulary: int = 20_000, width: int = 128, filters: int = 100) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.convs = nn.ModuleList(nn.Conv1d(width, filters, size) for size in (3, 5, 7))

    def forward(self, ids: Tensor) -> Tensor:
        """Features Tensor[N, 300] of ids Tensor[N, L]."""
        x = self.embedding(ids).transpose(1, 2)
        return torch.cat([conv(x).relu().amax(2) for conv in self.convs], 1)


class Bert(nn.Module):
    """A BERT-shaped encoder, 4 layers of width 256; the first token's vector."""

    def __init__(self) -> None:
        super().__init__()
        import transformers

        config = transformers.BertConfig(
            hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024
        )
        self.bert = transformers.BertModel(config, add_pooling_layer=False)

    def forward(self, ids: Tensor) -> Tensor:
        """Features Tensor[N, 256] of ids Tensor[N, L]."""
        return self.bert(input_ids=ids).last_hidden_state[:, 0]


MODELS: dict[str, tuple[Callable[[], nn.Module], int, int]] = {"bert": (Bert, 32, 256), "textcnn": (TextCNN, 64, 300)}


class Job:
    """One model, its batch, and everything that is timed; each public method is a line of the table."""

    def __init__(self, model: str, tasks: int) -> None:
        torch.manual_seed(0)
        make, length, width = MODELS[model]
        self.module = make()
        self.tasks = tasks
        self.rows = torch.arange(tasks).repeat_interleave(ROWS_PER_TASK)
        self.ids = torch.randint(1, 20_000, (len(self.rows), length))
        self.labels = torch.randint(0, 4, self.rows.shape)
        self.heads = nn.Parameter(torch.randn(tasks, 4, width) * 0.05)
        self.optimizer = torch.optim.AdamW([*self.module.parameters(), self.heads], lr=1e-4)
        self.parameters = dict(self.module.named_parameters())
        self.direction = {name: torch.randn_like(value) for name, value in self.parameters.items()}
        self._autogram: tuple[nn.Module, object] | None = None
        self._opacus: nn.Module | None = None

    def _each(self, z: Tensor) -> Tensor:
        """Tensor[N] from features Tensor[N, d]: the cross-entropy of each row at its task's head."""
        logits = torch.bmm(z.view(self.tasks, ROWS_PER_TASK, -1), self.heads.transpose(1, 2))
        return nn.functional.cross_entropy(logits.flatten(0, 1), self.labels, reduction="none")

    def _losses(self) -> Tensor:
        """Tensor[T]: each task's mean."""
        return self._each(self.module(self.ids)).view(self.tasks, -1).mean(1)

    def _tape(self) -> tuple[gradients.Tape, Tensor]:
        with gradients.record(self.module, self.rows) as tape:
            losses = self._losses()
        return tape, losses

    def step(self) -> None:
        """Forward, backward, update."""
        self._losses().sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def forward_backward(self) -> None:
        """The step without its update."""
        self._losses().sum().backward()
        self.optimizer.zero_grad()

    def slopes(self) -> None:
        """Every task's slope along a direction."""
        tape, losses = self._tape()
        tape.slopes(losses, self.direction)

    def row_slopes(self) -> None:
        """Every row's slope along a direction."""
        tape, losses = self._tape()
        tape.row_slopes(losses, self.direction)

    def task_gradients(self) -> None:
        """Every task's gradient."""
        tape, losses = self._tape()
        tape.task_gradients(losses)

    def gram(self) -> None:
        """All inner products of the tasks' gradients."""
        tape, losses = self._tape()
        tape.gram(losses)

    def weighted_step(self) -> None:
        """A whole step whose task weights come from the task gradients of the same batch."""
        tape, losses = self._tape()
        found = tape.task_gradients(losses)
        weights = found.slopes(self.direction).softmax(0)
        for name, grad in found.combine(weights).items():
            self.parameters[name].grad = grad
        (self.heads.grad,) = torch.autograd.grad(weights @ losses, [self.heads])
        self.optimizer.step()
        self.optimizer.zero_grad()

    def separate_backwards(self) -> None:
        """One backward per task."""
        gradients.exact_task_gradients(self._losses(), self.parameters)

    def torchjd_jac(self) -> None:
        """TorchJD's Jacobian as it comes, all tasks at once through vmap."""
        from torchjd.autojac import jac

        jac(self._losses(), list(self.parameters.values()))

    def torchjd_jac_by_one(self) -> None:
        """TorchJD's Jacobian, one task at a time."""
        from torchjd.autojac import jac

        jac(self._losses(), list(self.parameters.values()), parallel_chunk_size=1)

    def torchjd_autogram(self) -> None:
        """TorchJD's Gram matrix of the rows, folded to tasks."""
        if self._autogram is None:
            from torchjd.autogram import Engine

            twin = copy.deepcopy(self.module)
            self._autogram = twin, Engine(twin, batch_dim=0)
        twin, engine = self._autogram
        gram = engine.compute_gramian(self._each(twin(self.ids)))
        gram.view(self.tasks, ROWS_PER_TASK, self.tasks, ROWS_PER_TASK).sum((1, 3))

    def opacus(self) -> None:
        """Opacus' gradient of every row, summed per task."""
        if self._opacus is None:
            from opacus import GradSampleModule

            self._opacus = GradSampleModule(copy.deepcopy(self.module))
        self._each(self._opacus(self.ids)).sum().backward()
        for value in self._opacus.parameters():
            if value.grad_sample.shape[0] != len(self.rows):
                raise RuntimeError(f"{value.grad_sample.shape[0]} row gradients for {len(self.rows)} rows")
            torch.zeros(self.tasks, *value.shape).index_add_(0, self.rows, value.grad_sample)
        self._opacus.zero_grad()


OURS = ("forward_backward", "slopes", "row_slopes", "task_gradients", "gram", "weighted_step")
RIVALS = ("separate_backwards", "torchjd_jac", "torchjd_jac_by_one", "torchjd_autogram", "opacus")


def peak(run: Callable[[], None]) -> int:
    """The most bytes that torch's CPU allocator held at once during a run, above those at its start."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profiler:
        run()
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most


def _takes_part(rival: str, turn: int, rival_rounds: int) -> bool:
    """Whether a rival runs in this turn: none warms up but Opacus, whose hooks are made in its first run."""
    return rival_rounds > 0 and turn <= rival_rounds and (turn > 0 or rival == "opacus")


def measure(job: Job, rounds: int, rival_rounds: int) -> tuple[dict[str, list[tuple[float, float]]], dict[str, str]]:
    """CPU and wall seconds of every line in each round, the lines taking turns; and what failed, why."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in ("step", *OURS, *RIVALS)}
    failed: dict[str, str] = {}
    for turn in range(rounds + 1):
        for name, found in times.items():
            if name in failed or (name in RIVALS and not _takes_part(name, turn, rival_rounds)):
                continue
            cpu, wall = time.process_time(), time.perf_counter()
            try:
                getattr(job, name)()
            except (RuntimeError, ValueError, NotImplementedError, AttributeError, TypeError) as error:
                if name not in RIVALS:
                    raise
                failed[name] = f"{type(error).__name__}: {str(error).splitlines()[0][:90]}"
                continue
            if turn > 0:
                found.append((time.process_time() - cpu, time.perf_counter() - wall))
    return times, failed


def table(model: str, tasks: int, rounds: int, rival_rounds: int) -> None:
    """Measure one model with one number of tasks and print its table."""
    job = Job(model, tasks)
    times, failed = measure(job, rounds, rival_rounds)
    base = [
        (min(values), statistics.median(values)) for values in (list(part) for part in zip(*times["step"], strict=True))
    ]
    memory = peak(job.step)
    numbers = sum(value.numel() for value in job.parameters.values())
    print(
        f"\n{model}, T = {tasks}, N = {len(job.rows)}, P = {numbers / 1e6:.1f} M: one step takes "
        f"{base[0][0]:.3f} s of CPU (median {base[0][1]:.3f}), {base[1][0]:.3f} s of wall time "
        f"({base[1][1]:.3f}), {memory / 2**20:.0f} MiB"
    )
    print(f"{'':22}{'CPU min':>9}{'median':>9}{'wall min':>10}{'median':>9}{'memory':>9}")
    for name, values in times.items():
        if name in failed:
            print(f"{name:22}  does not apply ({failed[name]})")
        elif values:
            cpu, wall = (list(part) for part in zip(*values, strict=True))
            ratios = (min(cpu) / base[0][0], statistics.median(cpu) / base[0][1])
            waits = (min(wall) / base[1][0], statistics.median(wall) / base[1][1])
            held = peak(getattr(job, name)) / memory if name in OURS else float("nan")
            end = f"{held:>8.2f}x" if name in OURS else ""
            print(f"{name:22}{ratios[0]:>8.2f}x{ratios[1]:>8.2f}x{waits[0]:>9.2f}x{waits[1]:>8.2f}x{end}", flush=True)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="T of 4 and 8, three rounds")
    parser.add_argument("--models", nargs="+", choices=sorted(MODELS), default=sorted(MODELS))
    parser.add_argument("--tasks", nargs="+", type=int, default=None)
    parser.add_argument("--rounds", type=int, default=None)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rival-tasks", type=int, default=24, help="the most tasks for which rivals run")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    warnings.simplefilter("ignore")
    for model in given.models:
        for tasks in given.tasks or ([4, 8] if given.quick else [4, 8, 24, 64]):
            rivals = 0 if tasks > given.rival_tasks else 1 if tasks > 8 or given.quick else 2
            table(model, tasks, given.rounds or (3 if given.quick else 5), rivals)


if __name__ == "__main__":
    main()
