"""A simulated step as a Chakra execution trace for ASTRA-sim and Chakra's own tools.

The trace has a node for each op, whose ``ctrl_deps`` is its caller, followed by a node for each
task of the timeline, whose ``data_deps`` are its waits. Chakra uses whole microseconds: starts and
ends are rounded, and a duration is their difference, so that sums do not drift.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from irgraph.capture.chakra.model_nodes import GROUPS_NODE
from irgraph.capture.chakra.schema import (
    COMM_COLL_NODE,
    COMP_NODE,
    METADATA_NODE,
    MODEL,
    Message,
    attribute,
    messages,
)
from irgraph.capture.chakra.stream import encode
from irgraph.capture.chakra.torch_values import Values, torch_name
from irgraph.exchange.collectives import Groups, collective_of
from irgraph.files import write_atomic
from irgraph.ir.cost import Priced
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ir.ranks import groups_of
from irgraph.schedule.intervals import Interval
from irgraph.schedule.ranks import is_collective
from irgraph.schedule.timeline import Timeline

VERSION = "irgraph 1"
"""Version in a file; its number changes with the meaning of the nodes."""


def write_chakra(timeline: Timeline, priced: Priced, path: str | Path) -> None:
    """Write a simulated step as a Chakra execution trace, atomically.

    Args:
        timeline: of the step.
        priced: the step with its device work.
        path: the file; ASTRA-sim expects ``NAME.0.et`` for its first rank, and so on.

    Raises:
        IrgraphError: protobuf is missing (exit code 2), or the file cannot be written.
    """
    write_atomic(path, chakra_trace(timeline, priced))


def chakra_trace(timeline: Timeline, priced: Priced, groups: Groups | None = None) -> bytes:
    """Return the content of the file that ``write_chakra`` writes.

    ``groups`` are the process groups of its collectives (default: the groups of the model).
    """
    step = _StepNodes(timeline, priced, groups or Groups(groups_of(priced.graph)))
    return encode(_metadata(timeline, priced.graph), step.nodes())


def write_rank_traces(
    steps: Sequence[tuple[Timeline, Priced]],
    groups: Sequence[Mapping[str, tuple[int, ...]]],
    prefix: str | Path,
) -> list[Path]:
    """Write a trace for each rank, ``PREFIX.0.et`` and so on; return the files.

    Args:
        steps: the timeline of each rank, simulated independently: a collective only lasts for its
            transfer, and the simulator determines the waits between ranks.
        groups: the process groups of each rank; equal groups have one number in all files.
        prefix: the files' common path.

    Raises ``IrgraphError`` as ``write_chakra`` does.
    """
    numbers: dict[tuple[int, ...], int] = {}
    content_by_key: dict[tuple[object, ...], bytes] = {}
    paths = []
    for rank, ((timeline, priced), own_groups) in enumerate(zip(steps, groups, strict=True)):
        key = (id(timeline), *own_groups.items())
        if key not in content_by_key:
            content_by_key[key] = chakra_trace(timeline, priced, Groups(own_groups, numbers))
        paths.append(Path(f"{prefix}.{rank}.et"))
        write_atomic(paths[-1], content_by_key[key])
    return paths


def _metadata(timeline: Timeline, graph: Graph) -> Message:
    """Return the head of a file: the model's text, device, host, accounting and step time."""
    from irgraph.text import print_graph

    texts = {"device": timeline.device, "host": timeline.host, "accounting": timeline.accounting}
    message = messages()["GlobalMetadata"](version=VERSION)
    message.attr.extend(attribute(name, "string", text) for name, text in texts.items())
    message.attr.append(attribute("step_time_us", "double", timeline.step_time))
    resources = [str(resource) for resource in timeline.resources]
    message.attr.append(attribute("resources", "string*", resources))
    message.attr.append(attribute(MODEL, "string", print_graph(graph)))
    return message


class _StepNodes:
    """Converts a timeline into nodes; ids count from 1, and callers precede their callees."""

    def __init__(self, timeline: Timeline, priced: Priced, groups: Groups) -> None:
        self.timeline = timeline
        self.graph = priced.graph
        self.groups = groups
        self.values = Values(priced.graph)
        self.owners = {id(k): op for op in priced.graph.walk() for k in priced.kernels.get(op, ())}
        self.first = 2 if groups.ranks_by_name else 1
        self.ids = {op: number for number, op in enumerate(priced.graph.walk(), self.first)}
        self.described: set[Op] = set()

    def nodes(self) -> Iterator[Message]:
        if self.groups.ranks_by_name:
            yield self._group_node()
        yield from self._op_nodes(self.graph.ops, ())
        yield from self._task_nodes()

    def _group_node(self) -> Message:
        node = messages()["Node"](id=1, name=GROUPS_NODE, type=METADATA_NODE)
        node.inputs.values, node.inputs.types = self.groups.text(), "['String']"
        node.inputs.shapes = "[[]]"
        node.attr.append(attribute("is_cpu_op", "bool", True))
        return node

    def _op_nodes(self, ops: Sequence[Op], callers: tuple[int, ...]) -> Iterator[Message]:
        """Yield a node without duration for each op and its inner ops."""
        for op in ops:
            number = self.ids[op]
            node = messages()["Node"](
                id=number, name=torch_name(op), type=METADATA_NODE, ctrl_deps=callers
            )
            self._add_operands(node, op)
            # ASTRA-sim reads the values of a metadata node as a list of process groups.
            node.inputs.values = ""
            texts = {
                "module": op.module,
                "phase": op.phase,
                "thread": op.thread,
                "origin": op.origin,
            }
            node.attr.append(attribute("is_cpu_op", "bool", True))
            node.attr.extend(attribute(k, "string", text) for k, text in texts.items() if text)
            yield node
            yield from self._op_nodes(op.body, (number,))

    def _task_nodes(self) -> Iterator[Message]:
        columns = self.timeline.columns
        starts, ends = (
            np.rint(edge).astype(np.int64).tolist() for edge in (columns.start, columns.end)
        )
        first_task = self.first + len(self.ids)
        for index, interval in enumerate(columns):
            waits = dict.fromkeys(first_task + other for other in interval.after)
            node = messages()["Node"](
                id=first_task + index,
                name=_task_name(interval),
                type=COMP_NODE,
                data_deps=waits,
                start_time_micros=starts[index],
                duration_micros=ends[index] - starts[index],
            )
            self._describe(node, interval)
            yield node

    def _describe(self, node: Message, interval: Interval) -> None:
        """Add a task's op, resource, cause, kernel and collective to its node."""
        on_host = self.timeline.on_host(interval)
        node.attr.append(attribute("is_cpu_op", "bool", on_host))
        node.attr.append(attribute("tid" if on_host else "stream", "int64", interval.resource))
        node.attr.append(attribute("cause", "string", interval.cause))
        node.attr.append(attribute("duration_us", "double", interval.length))
        if interval.op is not None:
            node.ctrl_deps.append(self.ids[interval.op])
            if on_host and interval.op not in self.described:
                self.described.add(interval.op)
                self._add_operands(node, interval.op)
        kernel = interval.kernel
        if interval.cause == "kernel" and kernel is not None:
            facts: dict[str, Any] = {"family": kernel.family, "provenance": kernel.by}
            node.attr.extend(attribute(k, "string", text) for k, text in facts.items())
            communication = (
                collective_of(self.owners.get(id(kernel))) if is_collective(kernel) else None
            )
            if communication is not None and not on_host:
                node.type = COMM_COLL_NODE
                node.attr.append(attribute("comm_type", "int64", communication.kind))
                node.attr.append(attribute("comm_size", "int64", communication.nbytes))
                number = self.groups.number(kernel.group)
                if number:
                    node.attr.append(attribute("pg_name", "string", str(number)))

    def _add_operands(self, node: Message, op: Op) -> None:
        """Add operands and results in the form of PyTorch's execution traces."""
        for side, columns in (
            (node.inputs, self.values.inputs(op)),
            (node.outputs, self.values.outputs(op)),
        ):
            side.values, side.shapes, side.types = (str(column) for column in columns)


def _task_name(interval: Interval) -> str:
    """Return the name of a task: its kernel, or its cause and op."""
    if interval.cause == "kernel" and interval.kernel is not None:
        return interval.kernel.name
    return f"{interval.cause} {torch_name(interval.op)}" if interval.op else interval.cause
