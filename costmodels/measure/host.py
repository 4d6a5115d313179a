"""Speed of a machine's host as one number: the microseconds per layer of a small training step.

The layers are so small that a CPU spends its time on Python, dispatch and autograd, as the host of
a GPU does. One thread is timed, by the processor's clock.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

LAYERS, WIDTH, BATCH = 16, 4, 2
"""Linear layers with ReLU, their width, and rows of the batch."""
STEPS, WARM = 10, 20
"""Steps of a round, and warm-up steps before the first round."""


class HostPace(Struct, frozen=True):
    """Measured speed of a host.

    Attributes:
        us: microseconds per layer of a step, forward, backward and update: median of rounds.
        spread: half the distance between the quartiles of rounds, relative to the median.
        rounds: number of timed rounds of steps.
        torch: release of torch.
    """

    us: float
    spread: float
    rounds: int
    torch: str

    def factor(self, other: float) -> float:
        """Return the speed relative to a host whose layer takes ``other`` microseconds."""
        return other / self.us


def measure_host(torch: Any, seconds: float = 2.0) -> HostPace:  # noqa: ANN401  (the module)
    """Time steps on one thread for ``seconds`` of processor time, and return their statistics."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        step = _step(torch)
        for _ in range(WARM):
            step()
        rounds = _rounds(step, seconds)
    finally:
        torch.set_num_threads(threads)
    median = statistics.median(rounds)
    first, _, last = statistics.quantiles(rounds, n=4)
    return HostPace(median, (last - first) / 2 / median, len(rounds), str(torch.__version__))


def _step(torch: Any) -> Callable[[], None]:  # noqa: ANN401  (the module)
    """Return a training step of small layers."""
    nn = torch.nn
    layers = (part for _ in range(LAYERS) for part in (nn.Linear(WIDTH, WIDTH), nn.ReLU()))
    model = nn.Sequential(*layers)
    rule = torch.optim.SGD(model.parameters(), lr=0.01, foreach=False)
    rows = torch.rand(BATCH, WIDTH)

    def step() -> None:
        rule.zero_grad()
        model(rows).sum().backward()
        rule.step()

    return step


def _rounds(step: Callable[[], None], seconds: float) -> Sequence[float]:
    """Return the microseconds per layer of each round; at least four rounds."""
    us_by_round: list[float] = []
    start = time.process_time()
    while len(us_by_round) < 4 or time.process_time() - start < seconds:
        start_of_round = time.process_time()
        for _ in range(STEPS):
            step()
        us_by_round.append((time.process_time() - start_of_round) / STEPS / LAYERS * 1e6)
    return us_by_round
