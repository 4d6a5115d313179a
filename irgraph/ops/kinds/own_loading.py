"""The program's loading of a batch, which computes nothing of the step."""

from __future__ import annotations

from irgraph.ir.loading import LOAD
from irgraph.ops.custom import custom_operator
from irgraph.ops.patterns import pattern


def _load_nothing(**_: object) -> None:
    """Return nothing: batches are operands of the step."""


OPERATORS = custom_operator(
    f"{LOAD.replace('.', '::')}(*, int nanoseconds, int workers=0) -> ()",
    pattern("->"),
    _load_nothing,
)
