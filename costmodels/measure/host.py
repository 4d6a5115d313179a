"""How fast a machine's host is, as one number: microseconds of a small training step a call.

The step is of layers so small that a CPU spends its time on Python, dispatch and autograd, as the
host of a GPU does; one thread, by the processor's clock.
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
"""Steps of a round, and before the first round."""


class HostPace(Struct, frozen=True):
    """What was measured.

    Attributes:
        us: microseconds a layer of a step takes, forward, backward and update: median of rounds.
        spread: half the distance between the quartiles of rounds, over the median.
        rounds: how many rounds of steps were timed.
        torch: the release.
    """

    us: float
    spread: float
    rounds: int
    torch: str

    def factor(self, other: float) -> float:
        """Return how many times as fast as a host where the same took ``other`` microseconds."""
        return other / self.us


def measure_host(torch: Any, seconds: float = 2.0) -> HostPace:  # noqa: ANN401  (the module)
    """Time steps for so many seconds of the processor on one thread."""
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
    """Return microseconds a layer by round; at least four rounds."""
    us_by_round: list[float] = []
    start = time.process_time()
    while len(us_by_round) < 4 or time.process_time() - start < seconds:
        start_of_round = time.process_time()
        for _ in range(STEPS):
            step()
        us_by_round.append((time.process_time() - start_of_round) / STEPS / LAYERS * 1e6)
    return us_by_round
