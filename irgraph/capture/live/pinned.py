"""Whether host tensors lie in pinned memory, as far as a capture can tell."""

from __future__ import annotations

from collections.abc import Sequence


def pinned_memory(copies: Sequence[tuple[bool, bool]], forced: bool) -> tuple[bool, list[str]]:
    """Return whether a graph's host tensors are pinned, and notes where that is not plain.

    ``copies`` holds, of each copy to the device, whether its memory is pinned and whether the
    host asked not to wait; ``forced`` says that the user wants them pinned.
    """
    if forced:
        return True, []
    held = [pinned for pinned, _ in copies]
    if held and all(held):
        return True, []
    notes = []
    if any(held):
        notes.append(
            f"{sum(held)} of {len(held)} copied host tensors lie in pinned memory: all are priced "
            "as pageable; --pinned prices all as pinned"
        )
    vain = sum(asked and not pinned for pinned, asked in copies)
    if vain:
        notes.append(
            f"copies with non_blocking from pageable memory ({vain}): the host stages them and "
            "waits all the same; --pinned if the real program pins it"
        )
    return False, notes
