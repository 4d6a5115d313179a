"""Random damage to execution traces: a sound graph or one clear error, never a traceback.

``python -m tests.capture.execution_trace.fuzz COUNT`` tries that many; ``make fuzz`` tries 20,000.
"""

from __future__ import annotations

import copy
import json
import random
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

from irgraph.capture.execution_trace import lower_execution_trace
from irgraph.diagnostics import IrgraphError
from irgraph.ops.verify import verify
from irgraph.text import parse, print_graph
from tests.capture.execution_trace.traces import BACKWARD, Row, literal, node, tensor, trace
from tests.capture.kineto.reading import fuzz as texts

Rng = random.Random

ODD: tuple[Any, ...] = (
    None, True, -1, 0, 1, 1.5, 2**63, 10**40, "", "x", "12", "é", 'a"b', "\n", "aten::relu", "a..b",
    "aten::neg(=) -> Tensor", "Tensor(float)", "cuda:1", "ProfilerStep#" + "9" * 5000, [], [[]], {},
    [2, 2, 0, 4, 4, "cuda:1"], [-1, 3], {"a": 1}, "<None>",
    "autograd::engine::evaluate_function: X",
)  # fmt: skip
"""What takes the place of a value."""


def rows() -> list[Row]:
    """Return a step of forward, backward and optimizer, with views, lists, copies and labels."""
    x, w, b = tensor(10, 11, 2, 4), tensor(12, 13, 3, 4), tensor(14, 15, 3)
    t, y, g = tensor(16, 13, 4, 3), tensor(18, 19, 2, 3), tensor(40, 41, 2, 3)
    host, wide, new = tensor(50, 51, 2, 4, device="cpu"), tensor(60, 61, 4, 3), tensor(62, 63, 3, 4)
    both = {"value": [y["value"], y["value"]], "shape": [[2, 3], [2, 3]]}
    listed = {**both, "type": "GenericList[Tensor(float),Tensor(float)]"}
    one = literal(1, "Int")
    copy = "aten::to.device(Tensor(a) self, Device device, ScalarType dtype) -> Tensor(a)"
    name = "AddmmBackward0"
    return [
        BACKWARD,
        node(4, "ProfilerStep#1", scope=7),
        node(
            5,
            "aten::to",
            [host, literal("cuda:0", "Device"), literal(6, "Int")],
            [x],
            4,
            schema=copy,
        ),
        node(6, "module::bot.0", parent=4, scope=7),
        node(7, "aten::linear", [x, w, b], [y], 6, seq_id=7),
        node(8, "aten::t", [w], [t], 7, seq_id=7),
        node(9, "aten::addmm", [b, x, t, one, one], [y], 7, seq_id=8),
        node(
            10,
            "aten::cat",
            [listed, literal(0, "Int")],
            [wide],
            4,
            schema="aten::cat(Tensor[] tensors, int dim=0) -> Tensor",
        ),
        node(11, "aten::relu_", [wide], [wide], 4),
        node(20, "## backward ##", parent=4, scope=7),
        node(21, f"autograd::engine::evaluate_function: {name}", parent=3, tid=2),
        node(22, name, [g], [g], 21, tid=2, seq_id=8, fw_parent=20, scope=1),
        node(23, "aten::mm", [tensor(70, 41, 3, 2), x], [new], 22, tid=2),
        node(30, "Optimizer.step#SGD.step", parent=4, scope=7),
        node(31, "aten::add_", [w, new, literal(-0.1, "Double")], [w], 30),
    ]


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Return every container within a decoded trace, with a key or index in it."""
    found: list[tuple[Any, Any]] = []
    waiting = [value]
    while waiting:
        item = waiting.pop()
        keys = item if isinstance(item, dict) else range(len(item))
        for key in keys:
            found.append((item, key))
            if isinstance(item[key], (dict, list)):
                waiting.append(item[key])
    return found


def odd_value(data: Any, rng: Rng) -> None:
    """Put something else in the place of a value."""
    container, key = rng.choice(_places(data))
    container[key] = copy.deepcopy(rng.choice(ODD))


def drop(data: Any, rng: Rng) -> None:
    """Take away a value or a node."""
    container, key = rng.choice(_places(data))
    del container[key]


def drop_node(data: Any, rng: Rng) -> None:
    """Take away a node."""
    data["nodes"].pop(rng.randrange(len(data["nodes"])))


def duplicate_node(data: Any, rng: Rng) -> None:
    """Write a node twice, as it is or with another id."""
    copy = json.loads(json.dumps(rng.choice(data["nodes"])))
    copy["id"] = rng.choice((copy["id"], copy["id"], rng.randrange(40)))
    data["nodes"].insert(rng.randrange(len(data["nodes"])), copy)


def other_caller(data: Any, rng: Rng) -> None:
    """Give a node another caller or id, which may close a circle."""
    for _ in range(rng.choice((1, 2))):
        chosen = rng.choice(data["nodes"])
        keys = [key for key in ("parent", "ctrl_deps", "fw_parent", "id") if key in chosen]
        chosen[rng.choice(keys)] = rng.choice(data["nodes"])["id"]


def swap(data: Any, rng: Rng) -> None:
    """Exchange two values."""
    places = _places(data["nodes"])
    (a, key), (b, other) = rng.choice(places), rng.choice(places)
    a[key], b[other] = json.loads(json.dumps([b[other], a[key]]))


STRUCTURAL: tuple[Callable[[Any, Rng], None], ...] = (
    odd_value, odd_value, odd_value, drop, drop_node, duplicate_node, other_caller, swap,
)  # fmt: skip


def damaged(seed: int) -> bytes:
    """Return the sample trace with one damage, or a few, chosen by the seed."""
    rng = random.Random(seed)
    sound = trace(*rows(), version=rng.choice(("1.0.1", "1.1.1")))
    if rng.random() < 0.4:
        return rng.choice(texts.DAMAGES)(bytearray(sound), rng)
    data = json.loads(sound)
    for _ in range(rng.choice((1, 1, 2))):
        if isinstance(data.get("nodes"), list) and data["nodes"]:
            try:
                rng.choice(STRUCTURAL)(data, rng)
            except (LookupError, TypeError):  # an earlier damage left nothing to change
                continue
    return json.dumps(data).encode()


def outcome(data: bytes) -> str:
    """Lower a damaged trace and return ``refused``, ``noted`` or ``clean``.

    Raises:
        AssertionError: the graph breaks rules or cannot be read again.
    """
    try:
        captured = lower_execution_trace(data, name="et.json")
    except IrgraphError as error:
        message = str(error)
        assert error.exit_code == 4
        assert message.startswith("et.json"), message
        assert len(message) < 3000, message
        return "refused"
    assert verify(captured.graph) == []
    assert parse(print_graph(captured.graph)) == captured.graph
    return "noted" if captured.notes else "clean"


def fuzz(count: int, first: int = 0) -> tuple[Counter[str], dict[int, str]]:
    """Try seeds and return how often each outcome came, and what failed by its seed."""
    counts: Counter[str] = Counter()
    failed: dict[int, str] = {}
    for seed in range(first, first + count):
        try:
            counts[outcome(damaged(seed))] += 1
        except Exception as error:
            failed[seed] = repr(error)[:300]
    return counts, failed


def main(count: int) -> str:
    """Try that many and return what went wrong, nothing if all is well."""
    counts, failed = fuzz(count)
    sys.stdout.write(f"{dict(counts)}\n")
    return f"failed: {failed}" if failed else ""


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 20_000) or 0)
