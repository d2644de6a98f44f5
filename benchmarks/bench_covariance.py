"""What the similarity of two feature sets of 100 000 × 512 costs: seconds, memory beyond a chunk, distance from exact.

    .venv/bin/python benchmarks/bench_covariance.py [threads]

The rows are drawn chunk by chunk, as they would come from a file or a model, so that what is measured is one pass.
"""

import resource
import sys
import time

import torch

from steelyard.diagnostics import Moments, similarity
from steelyard.functional import covariance_similarity

ROWS, WIDTH, CHUNK = 100_000, 512, 4096


def memory() -> float:
    """The most that this process has held, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Measures, and prints."""
    torch.set_num_threads(int(sys.argv[1]) if len(sys.argv) > 1 else 2)
    spread = torch.linspace(1, 4, WIDTH)
    chunk = torch.randn(CHUNK, WIDTH) * spread
    similarity(Moments.of(chunk[:64, :32]), Moments.of(chunk[:64, 32:64]))  # loads what a first call loads
    other = chunk.flip(1)
    before, best = memory(), {"seconds": float("inf"), "CPU seconds": float("inf")}
    for _ in range(5):
        clock, cpu = time.perf_counter(), time.process_time()
        seen = []
        for rows in (chunk, other):
            moments = Moments()
            for start in range(0, ROWS, CHUNK):
                moments.add(rows[: min(CHUNK, ROWS - start)])
            seen.append(moments)
        similarity(*seen)
        best["seconds"] = min(best["seconds"], time.perf_counter() - clock)
        best["CPU seconds"] = min(best["CPU seconds"], time.process_time() - cpu)
    beyond = memory() - before
    print(f"{ROWS} × {WIDTH}, twice, {torch.get_num_threads()} threads; best of 5")
    print(", ".join(f"{name} {value:.2f}" for name, value in best.items()))
    print(f"memory beyond the chunks: {beyond:.0f} MB (a chunk: {chunk.nbytes / 2**20:.0f} MB)")
    exact = covariance_similarity(chunk.double(), other.double())
    apart = abs(similarity(Moments.of(chunk), Moments.of(other)) - float(exact))
    print(f"distance from the score in float64: {apart:.1e}")


if __name__ == "__main__":
    main()
