"""Accounting rules of a step: those of the paper's Algorithm 1, of its programs, and irgraph's own.

The paper states one set of rules; its program followed others, which changed over the years. Each
difference is a field here, so that a prediction states the rules by which it was made.
"""

from __future__ import annotations

from msgspec import Struct

from irgraph.diagnostics import fail, suggestion


class Accounting(Struct, frozen=True):
    """Rules of Algorithm 1. Times in microseconds.

    Attributes:
        name: how reports call these rules.
        t4: time of every launch; ``None`` takes the host table's, by kind of launch.
        launch_share: share of T4 after which the device may start what is launched.
        latency: from then to the start of the kernel on an idle device.
        gap: between the end of a kernel and the start of the next one of a busy stream.
        graph_gap: the same among the kernels of one CUDA graph; ``gap`` where it is not given.
        per_kernel: added to the time of every kernel.
        listed: when the host also pays for launches that its table lists beyond those the cost
            models know: ``never``, ``unknown`` (for operations that no cost model knows in full:
            a list is of the usual call of a name, in the software of its day) or ``always``.
        sync: what makes the host wait for the device: ``never``, ``to`` (every ``aten.to`` waits
            for all earlier work, after its T3) or ``blocking`` (each ``Kernel.blocking``).
        sync_return: from the end of the awaited work until the host continues.
        annotations: what a label around operations costs: ``free``; ``entered``, the table's time
            to the first launch less that of the operation which makes it, and its T3; or
            ``whole``: a label the table knows is one operation that pays T2 and T3 twice and no
            T4, and what it encloses pays nothing.
        queue_depth: launches that may wait for the device before the host waits, too.
        simulated: whether threads and streams are simulated, or Algorithm 1 is run as printed.
    """

    name: str
    t4: float | None = None
    launch_share: float = 1.0
    latency: float = 0.0
    gap: float = 1.0
    graph_gap: float | None = None
    per_kernel: float = 0.0
    listed: str = "never"
    sync: str = "never"
    sync_return: float = 0.0
    annotations: str = "free"
    queue_depth: int = 1024
    simulated: bool = False


PAPER = Accounting("paper", t4=10.0, launch_share=0.5, listed="always")
"""Algorithm 1 word for word: kernels start at ``max(gpu + 1, cpu + T4/2)``, T4 is 10 us
(section IV-B), nothing waits for the device."""

CODE_2021 = Accounting("code-2021", launch_share=0.5, listed="always", annotations="whole")
"""The program of May 2021, whose intermediate results are published: T4 as profiled, the
optimizer's labels as whole operations that pay T2 and T3 twice."""

CODE_2022 = Accounting("code-2022", t4=4.0, per_kernel=4.0, listed="always")
"""The program behind the paper's tables: kernels start at ``max(gpu + 1, cpu + T4)``, T4 is 4 us,
4 us are added to every kernel."""

CODE_HEAD = Accounting("code-head", t4=4.0, per_kernel=5.0, sync="to")
"""The program as last published: 5 us on every kernel, launches beyond the modelled kernels are
free, every ``aten.to`` waits for the device. (Its 2 us for an ``aten.to`` without children and
its second stream for collectives are left out.)"""

BLOCKING = Accounting(
    "blocking",
    latency=2.0,
    graph_gap=0.5,
    listed="unknown",
    sync="blocking",
    sync_return=3.5,
    annotations="entered",
    simulated=True,
)
"""irgraph's own rules. The host waits for copies from and to its memory, as ``cudaMemcpyAsync``
followed by ``cudaStreamSynchronize`` does, and pays for entering the optimizer. The
constants are medians of profiled steps on V100 machines not used in the evaluation (ResNet-50 on
one V100, DLRM on eight; all times whole microseconds): a kernel starts 2 to 3 us after the end of
its launch where the device is idle (1,467 and 171 kernels), 1 us after the kernel before it where
the launch was early (7,492 and 38), and ``cudaStreamSynchronize`` returns 3 to 4 us after the end
of the awaited work (12 and 8). Among the kernels of a graph it is what replays of three programs
on an H100 take beyond their traced kernels (EfficientNet-B0, DLRM, GPT-2: 0.39, 0.69 and 0.42 us a
kernel, of 1,314, 59 and 259)."""

ACCOUNTINGS = {a.name: a for a in (PAPER, CODE_2021, CODE_2022, CODE_HEAD, BLOCKING)}
"""The presets by name."""


def find_accounting(name: str) -> Accounting:
    """Return a preset by name; ``IrgraphError`` names the nearest one where there is none."""
    if name not in ACCOUNTINGS:
        message = f"unknown accounting {name!r}{suggestion(name, ACCOUNTINGS)}"
        raise fail(message, hint=f"known: {', '.join(ACCOUNTINGS)}", exit_code=2)
    return ACCOUNTINGS[name]
