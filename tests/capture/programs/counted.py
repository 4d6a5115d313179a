"""Operations of a program's step, counted by torch while the program runs on the CPU.

python -m tests.capture.programs.counted PROGRAM [ARGUMENT ...]
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.flop_counter import FlopCounterMode


class EndOfStepError(BaseException):
    """Raised after the second step; ``except Exception`` does not catch it."""


def flops_of_second_step(program: Path, arguments: Sequence[str]) -> int:
    """Run a program up to the third update by its first optimizer.

    Return torch's count between the second and the third one.
    """
    counter = FlopCounterMode(display=False)
    totals: dict[int, list[int]] = {}

    def note_update(optimizer: Any, *_: Any) -> None:
        totals.setdefault(id(optimizer), []).append(counter.get_total_flops())
        if len(next(iter(totals.values()))) > 2:
            raise EndOfStepError

    hook = register_optimizer_step_post_hook(note_update)
    path = [str(program.parent), *sys.path]
    argv = [str(program), *arguments]
    try:
        with (
            counter,
            sdpa_kernel(SDPBackend.MATH),  # the CPU's own kernel is not counted
            mock.patch.object(sys, "argv", argv),
            mock.patch.object(sys, "path", path),
        ):
            runpy.run_path(str(program), run_name="__main__")
    except EndOfStepError:
        pass
    finally:
        hook.remove()
    first = next(iter(totals.values()))
    return first[2] - first[1]


if __name__ == "__main__":
    import tests.zoo.stubs  # noqa: F401

    count = flops_of_second_step(Path(sys.argv[1]), sys.argv[2:])
    sys.stdout.write(f"\n{count}\n")
