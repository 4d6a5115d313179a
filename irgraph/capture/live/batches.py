"""Batches of another size: the first rows of a batch, or its rows repeated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from irgraph.capture.common.symbolic import other_sizes
from irgraph.capture.common.torch_object import Torch

UNCHANGED_STEPS = 2
"""Number of steps with batches of original size: one to warm up, and the first captured one."""


class BatchSizes:
    """The batch size of each step of a loop, independent of the batches' loaders.

    If a loader fetches batches before their step, to copy them early, each size is used for as many
    steps as the loader is ahead before a step of that size is recorded: then the recorded copies
    have that size as well.

    Attributes:
        batch: rows of the first batch that the second step fetched; 0 if it fetched none.
        plan: batch size of each step that is needed; empty until the first two steps have ended.
        recorded: the numbers of the steps to be recorded.
        ended: number of steps that have ended.
        unfit: lengths of batches that cannot be cut in proportion.
        later_size: batch size of steps after the planned ones, 0 for the last planned size.
        is_fixed: whether all steps have the batch size of the second one.
    """

    def __init__(self, observed_steps: int = 0, is_fixed: bool = False) -> None:
        self._observed_steps = observed_steps
        self.is_fixed = is_fixed
        self.batch = self.ended = 0
        self.plan: list[int] = []
        self.recorded = [1]
        self.unfit: set[int] = set()
        self.later_size = 0
        self._times = 1
        self._rows: dict[int, tuple[int, object]] = {}
        self._batch_counts: tuple[Counter[int], ...] = tuple(
            Counter() for _ in range(UNCHANGED_STEPS)
        )

    def resize_batch(self, loader: object, batch: object) -> object:
        """Return a loader's next batch with the number of rows of the step that fetches it."""
        rows, _ = self._rows.setdefault(id(loader), (length_of(batch), loader))
        if self.ended < UNCHANGED_STEPS:
            self._batch_counts[self.ended][id(loader)] += 1
        if not rows or not self.plan:
            return cut_to(batch, rows) if rows else batch
        size = self.later_size or self.planned_size(self.ended)
        size, rest = divmod(rows * size, self.batch)
        if rest:
            self.unfit.add(rows)
        return cut_to(batch, rows if rest else size)

    def end_step(self) -> None:
        """Count a step, and choose the sizes of the others after the first ones."""
        self.ended += 1
        if self.ended == UNCHANGED_STEPS:
            self._choose_sizes()

    @property
    def is_done(self) -> bool:
        """Whether all planned steps have ended, and the steps that are only compared."""
        return self.ended >= self.required + self._observed_steps

    @property
    def ahead(self) -> int:
        """Number of steps before its step in which a loader fetches a batch."""
        return self._times - 1

    def planned_size(self, step: int) -> int:
        """Return the batch size of a planned step, or of the last one; 0 if unknown."""
        return self.plan[min(step, len(self.plan) - 1)] if self.plan else 0

    @property
    def required(self) -> int:
        """Number of steps without which the capture has no batch dimension."""
        return max(UNCHANGED_STEPS, len(self.plan))

    def repeat(self, step: int) -> None:
        """Plan another step of the size of a recorded one, to be recorded instead of it."""
        self.plan += [self.plan[step]] * self._times
        self.recorded[self.recorded.index(step)] = len(self.plan) - 1

    def _choose_sizes(self) -> None:
        """Choose the sizes of the remaining steps, by the batches of the first steps."""
        first, second = self._batch_counts
        loaders = [loader for loader in second if self._rows[loader][0]]
        if not loaders:
            return
        self.batch = self._rows[loaders[0]][0]
        ahead = max(-(-(first[key] - second[key]) // second[key]) for key in loaders)
        times = self._times = max(ahead, 0) + 1
        # the first size again before others: a program's state may not fit batches of many sizes
        sizes = [self.batch, *(() if self.is_fixed else other_sizes(self.batch))]
        self.plan = [self.batch] * UNCHANGED_STEPS + [size for size in sizes for _ in range(times)]
        self.recorded += range(UNCHANGED_STEPS + times - 1, len(self.plan), times)


def length_of(batch: object) -> int:
    """Return the length of a batch's first tensor along its first axis, 0 if it has none."""
    return next((size for size in lengths_of(batch) if size), 0)


def lengths_of(batch: object) -> Iterator[int]:
    """Yield the lengths of all tensors along their first axes, 0 for one that has none."""
    import torch

    if isinstance(batch, torch.nn.utils.rnn.PackedSequence):
        yield int(batch.batch_sizes[0])
    elif isinstance(batch, torch.Tensor):
        yield int(batch.shape[0]) if batch.dim() else 0
    elif isinstance(batch, (Mapping, list, tuple)):
        for part in batch.values() if isinstance(batch, Mapping) else batch:
            yield from lengths_of(part)


def cut_to(batch: object, size: int) -> object:
    """Return a batch with another number of rows; values of another length stay unchanged."""
    rows = length_of(batch)
    return batch if rows in (0, size) else _cut(batch, rows, size, {})


def _cut(value: Any, rows: int, size: int, cut_by_id: dict[int, Any]) -> Any:  # noqa: ANN401
    """Return a part of a batch with another number of rows.

    ``cut_by_id`` has the tensors that were cut before, since a batch may have a tensor twice.
    """
    import torch

    is_packed = isinstance(value, torch.nn.utils.rnn.PackedSequence)
    if is_packed or isinstance(value, torch.Tensor):
        if length_of(value) == rows and id(value) not in cut_by_id:
            cut_by_id[id(value)] = (
                _cut_packed(value, size) if is_packed else _cut_tensor(value, size)
            )
        return cut_by_id.get(id(value), value)
    if isinstance(value, Mapping):
        cut = {name: _cut(part, rows, size, cut_by_id) for name, part in value.items()}
        return type(value)(cut)  # type: ignore[call-arg]
    if not isinstance(value, (list, tuple)):
        return value
    if len(value) == rows and not any(isinstance(part, torch.Tensor) for part in value):
        return type(value)((value * -(-size // rows))[:size])
    parts = [_cut(part, rows, size, cut_by_id) for part in value]
    return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)


def _cut_tensor(tensor: Torch, size: int) -> Torch:
    times = -(-size // tensor.shape[0])
    rows = tensor.repeat(times, *[1] * (tensor.dim() - 1))[:size].clone()
    return rows.pin_memory() if tensor.is_pinned() else rows


def _cut_packed(sequences: Torch, size: int) -> Torch:
    """Return another number of packed sequences; sorted sequences stay sorted."""
    from torch.nn.utils import rnn

    padded, lengths = rnn.pad_packed_sequence(sequences, batch_first=True)
    lengths = _cut_tensor(lengths, size)
    packed = rnn.pack_padded_sequence(
        _cut_tensor(padded, size), lengths, batch_first=True, enforce_sorted=False
    )
    if sequences.sorted_indices is None:
        packed = rnn.PackedSequence(packed.data, packed.batch_sizes)
    return packed.pin_memory() if sequences.is_pinned() else packed
