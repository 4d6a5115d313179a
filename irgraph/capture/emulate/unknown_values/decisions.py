"""Values that are made up for reads of unknown ones, each with a note that names its line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

from msgspec import Struct

from irgraph.capture.common.torch_object import Torch
from irgraph.capture.emulate.unknown_values.assumptions import Assumptions
from irgraph.capture.emulate.unknown_values.source_context import Location, program_location
from irgraph.capture.emulate.unknown_values.uniform import UniformValues
from irgraph.diagnostics import fail

MAX_READS = 10_000
"""Maximum number of reads of unknown values by one line of a program in one step."""

TOO_MANY = "{} reads unknown values without end: {} times in one step"

END_VALUES = (0.0, 1e9, -1e9)
"""Numbers read after the last round of a loop, one of which ends it."""

UNKNOWN_VALUE = "an unknown value"

UNKNOWN = "aten.item: a meta tensor has no value, {} was returned"
"""Note on a read by no line of the program."""

DECIDED_BY_DATA = "{}: taken as {}, which the data of this step decide"
"""Note on a branch by a known value."""


def is_decision(note: str) -> bool:
    """Return whether a note is on a value that was made up for a line of the program."""
    return note.endswith(f"{UNKNOWN_VALUE})")


class AssumedRead(Struct, frozen=True):
    """The value of a read, and how it changes over the rounds of a loop.

    Attributes:
        value: the value.
        rounds: number of rounds of the loop, 0 outside a loop.
        during, after: values during the rounds and after the last one.
    """

    value: float
    rounds: int = 0
    during: float = 0.0
    after: float = 0.0

    def text(self, tensor: Torch) -> str:
        """Return the choice as a part of a sentence, in the type of the tensor."""
        import torch

        def show(value: float) -> str:
            return str(bool(value)) if tensor.dtype == torch.bool else f"{value:g}"

        if not self.rounds:
            return f"taken as {show(self.value)}"
        during, after = show(self.during), show(self.after)
        return f"taken as {during} for {self.rounds} rounds (--rounds), then as {after}"


class UnknownValues:
    """Assumed values of unknown numbers, and the notes on them.

    Attributes:
        assumptions: the user's assumptions.
        uniform: assumed values of the results of tests for ``nan`` and ``inf``.
        lines: a sentence on each line of the program that read an unknown value.
    """

    def __init__(self, assumptions: Assumptions | None = None) -> None:
        self.assumptions = assumptions or Assumptions()
        self.uniform = UniformValues()
        self.lines: dict[str, None] = {}
        self._origins: dict[int, tuple[Any, str]] = {}
        self._reads: Counter[tuple[str, int]] = Counter()
        self._rounds: Counter[tuple[str, int]] = Counter()
        self._ends: dict[tuple[str, int], Iterator[float]] = {}

    def begin_step(self) -> None:
        """Count reads from the start of a step."""
        self._reads.clear()
        self._rounds.clear()
        self._ends.clear()

    def follow(self, func: Torch, args: Torch, kwargs: Torch, result: Torch) -> None:
        """Store the origin of a call's result, if a program may read it."""
        import torch

        self.uniform.follow(func, args, kwargs, result)
        if isinstance(result, torch.Tensor) and result.numel() == 1 and result.is_meta:
            from torch.multiprocessing.reductions import StorageWeakRef

            base = func._schema.name.partition("::")[2].strip("_")
            if base == "mul" and result.dtype == torch.bool and self.uniform.value(result):
                base = "isfinite"  # torch computes it as a product of two comparisons
            if result.layout == torch.strided and base not in ("to_copy", "clone", "detach"):
                storage = result.untyped_storage()
                self._origins[storage._cdata] = (StorageWeakRef(storage), base)

    def read(self, tensor: Torch, notes: list[str]) -> float:
        """Return the value that a program gets for a tensor, and note it."""
        import torch

        location = program_location()
        assumed = self.uniform.value(tensor)
        if location is None:
            number = 1.0 if assumed is None else assumed
            notes.append(UNKNOWN.format(f"{number:g}"))
            return number
        key = (location.path, location.line)
        self._count(key, location)
        specified = self.assumptions.at_line(*key)
        if specified is not None or assumed is not None:
            choice = AssumedRead(assumed or 0.0 if specified is None else specified)
        elif tensor.dtype == torch.bool:
            choice = self._truth(key, location)
        else:
            choice = self._number(key, location)
        line = f"{_name(location)}: {choice.text(tensor)} ({self._origin(tensor)})"
        self.lines[line] = None
        notes.append(line)
        return choice.value

    def note_known(self, value: bool, notes: list[str]) -> None:
        """Note a branch that a known value decides: other steps may take the other way."""
        location = program_location()
        if location is not None and location.kind:
            notes.append(DECIDED_BY_DATA.format(_name(location), value))

    def _count(self, key: tuple[str, int], location: Location) -> None:
        self._reads[key] += 1
        if self._reads[key] > MAX_READS:
            name = _name(location)
            hint = f"--assume {name}=false, or true, or a number, decides the value"
            raise fail(TOO_MANY.format(name, MAX_READS), hint=hint)

    def _truth(self, key: tuple[str, int], location: Location) -> AssumedRead:
        """Return the truth of an unknown value, by the statement that tests it."""
        if location.kind == "guard":
            return AssumedRead(float(location.negated))
        if location.kind not in ("while", "exit"):
            return AssumedRead(float(not location.negated))
        # an exit is met in the last round, a loop's own test fails after it
        limit = self.assumptions.rounds
        is_exit = location.kind == "exit"
        during, after = (location.negated, not location.negated)
        if not is_exit:
            during, after = after, during
        is_over = self._end_round(key, limit - is_exit)
        value = float(after if is_over else during)
        return AssumedRead(value, limit - is_exit, float(during), float(after))

    def _number(self, key: tuple[str, int], location: Location) -> AssumedRead:
        """Return a number: one, and after the last round of a loop one that may end it."""
        limit = self.assumptions.rounds
        if location.kind not in ("while", "round"):
            return AssumedRead(1.0)
        if not self._end_round(key, limit):
            return AssumedRead(1.0)
        value = next(self._ends.setdefault(key, cycle(END_VALUES)))
        return AssumedRead(value, limit, 1.0, value)

    def _end_round(self, key: tuple[str, int], limit: int) -> bool:
        """Count a round; return whether it comes after the last one."""
        self._rounds[key] += 1
        is_over = self._rounds[key] > limit
        if is_over:
            self._rounds[key] = 0
        return is_over

    def _origin(self, tensor: Torch) -> str:
        entry = self._origins.get(tensor.untyped_storage()._cdata)
        is_known = entry is not None and not entry[0].expired()
        return f"{entry[1]} of {UNKNOWN_VALUE}" if is_known and entry else UNKNOWN_VALUE


def _name(location: Location) -> str:
    return f"{Path(location.path).name}:{location.line}"
