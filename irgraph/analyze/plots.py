"""Plots of an analysis: the paper's Figs. 1 and 5 (utilisation and breakdown), 7 and 8."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from irgraph.text.diagnostics import fail

if TYPE_CHECKING:
    from costmodels.host.format import HostFile
    from irgraph.analyze.analysis import Analysis

_LONGEST = 9


def draw(result: Analysis, path: str) -> None:
    """Draw each rank's step beside a breakdown of device work by family, into one file.

    Raises ``IrgraphError`` where matplotlib is not installed.
    """
    plt = _pyplot()
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.5), constrained_layout=True)
    _steps(left, result)
    _families(right, result)
    figure.savefig(path, dpi=160)
    plt.close(figure)


def draw_overheads(file: HostFile, path: str) -> None:
    """Draw the most costly overheads of a host table, with their standard deviations."""
    plt = _pyplot()
    kinds = ("t2", "t3", "t5")
    figure, axes = plt.subplots(1, 3, figsize=(13, 4.5), constrained_layout=True)
    for axis, kind in zip(axes, kinds, strict=True):
        found = [(s, op) for op, e in file.ops.items() if (s := getattr(e, kind)) is not None]
        found.sort(key=lambda pair: -pair[0].mean * pair[0].count)
        shown = found[:10][::-1]
        axis.barh(
            [op.removeprefix("autograd.")[:28] for _, op in shown],
            [s.mean for s, _ in shown],
            xerr=[s.std for s, _ in shown],
            color="#4878a8",
            error_kw={"lw": 0.8, "alpha": 0.6},
        )
        axis.set_title(f"{kind.upper()}, the ten most costly")
        axis.set_xlabel("us")
        axis.set_xlim(left=0)
    figure.suptitle(f"{file.name}: T1 {file.t1.mean:.1f} +- {file.t1.std:.1f} us")
    figure.savefig(path, dpi=160)
    plt.close(figure)


def _pyplot() -> Any:  # noqa: ANN401
    try:
        import matplotlib
    except ImportError:
        raise fail("plots need matplotlib", hint="pip install irgraph[plot]", exit_code=2) from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _steps(axis: Any, result: Analysis) -> None:  # noqa: ANN401
    steps = [step for step in result.steps if not step.left_out]
    names = [f"rank {s.rank}\nstep {s.step}" for s in steps]
    parts = (
        ("compute", [s.compute / 1e3 for s in steps], "#4878a8"),
        ("exposed communication", [s.exposed / 1e3 for s in steps], "#d6803c"),
        ("idle", [s.idle / 1e3 for s in steps], "#d9d9d9"),
    )
    base = [0.0] * len(steps)
    for label, values, color in parts:
        axis.bar(range(len(steps)), values, bottom=base, label=label, color=color, width=0.7)
        base = [a + b for a, b in zip(base, values, strict=True)]
    for at, step in enumerate(steps):
        share = step.active / step.time if step.time else 0.0
        axis.text(at, base[at], f"{share:.0%}", ha="center", va="bottom", fontsize=8)
    sparse = max(1, len(steps) // 10)
    axis.set_xticks(range(0, len(steps), sparse), names[::sparse], fontsize=7)
    axis.set_ylabel("ms")
    axis.set_title("step time; GPU utilization above")
    axis.legend(fontsize=8, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.12), frameon=False)


def _families(axis: Any, result: Analysis) -> None:  # noqa: ANN401
    rows = list(result.breakdowns["family"].items())
    shown = rows[:_LONGEST]
    rest = sum(us for _, (us, _) in rows[_LONGEST:])
    labels = [name for name, _ in shown] + (["the rest"] if rest else [])
    values = [us / 1e3 for _, (us, _) in shown] + ([rest / 1e3] if rest else [])
    axis.barh(labels[::-1], values[::-1], color="#4878a8")
    axis.set_xlabel("ms a step")
    axis.set_title("device work by kernel family")
