"""The calls of a program's data loaders: an op for each batch, without the calls that make it."""

from __future__ import annotations

from irgraph.capture.common.lowering import ORIGIN
from irgraph.capture.common.nodes import RecordedNode
from irgraph.ir.loading import LOAD
from irgraph.ir.torch_schemas.custom_ops import custom_ops

LOADER = "enumerate(DataLoader)"
"""Prefix of the labels of a loader's calls, as torch has it."""

BATCH = f"{LOADER}#batch of "
"""Prefix of the labels after the request of a batch; the loader's name follows."""


def replace_loading(nodes: list[RecordedNode]) -> int:
    """Replace labelled requests of batches by one op each, and remove other calls of loaders.

    These calls differ by batch size, and other processes run them if a loader has workers. Returns
    the number of batches that were removed without a labelled request.
    """
    count = 0
    replaced: list[RecordedNode] = []
    for node in nodes:
        if node.name.startswith(BATCH):
            replaced.append(_request(node))
        elif node.name.startswith(LOADER):
            count += node.name != LOADER
        else:
            count += replace_loading(node.children)
            replaced.append(node)
    nodes[:] = replaced
    return count


def _request(node: RecordedNode) -> RecordedNode:
    """Return the op of a request, in a range that specifies its loader as the origin."""
    schema = custom_ops()[LOAD].schema
    call = RecordedNode(node.id, LOAD, schema, [0, 0], thread=node.thread, parent=node.id)
    origin = f"{ORIGIN}{node.name.removeprefix(BATCH)}"
    return RecordedNode(node.id, origin, thread=node.thread, parent=node.parent, children=[call])
