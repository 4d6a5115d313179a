"""Sparse tensors, whose number of elements follows from their producer, not from their shape."""

from __future__ import annotations

from irgraph.ops.operator import Trait, no_meaning, operators

OPERATORS = {
    **operators(no_meaning, "_indices _values indices values", traits=[Trait.SPARSE_PART]),
    **operators(
        no_meaning,
        "_sparse_coo_tensor_unsafe sparse_coo_tensor",
        traits=[Trait.SPARSE_MAKER],
    ),
    **operators(no_meaning, "_pack_padded_sequence is_coalesced", traits=[Trait.DATA]),
}
