"""Write ``schemas.txt`` from the installed torch: ``python -m irgraph.ir.torch_schemas.generate``.

One line per overload: flags, a blank, and torch's own schema string. Flags: ``c`` if the op is
composed of other ops (CompositeImplicitAutograd), ``r`` if it draws random numbers, ``p`` if it is
pointwise, ``-`` for none.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from pathlib import Path

LIBRARIES = ("aten", "prims", "c10d", "c10d_functional", "_c10d_functional")

BAGS = "quantized::embedding_bag_"
"""Prefix of lookups in packed tables: the only quantised operators, with plain tensors only."""


def main() -> int:
    """Write the file into this module's folder and print the number of its schemas."""
    import torch

    torch._refs  # noqa: B018  (registers prims)
    schemas = (schema for schema in torch._C._jit_get_all_schemas() if _is_included(schema))
    lines = sorted(map(_line, schemas), key=_order)
    path = Path(__file__).with_name("schemas.txt")
    path.write_text(f"# torch {torch.__version__}\n" + "\n".join(lines) + "\n", encoding="utf-8")
    sys.stdout.write(f"{path}: {len(lines)} schemas of torch {torch.__version__}\n")
    return 0


def _is_included(schema: object) -> bool:
    import torch

    name = str(getattr(schema, "name", ""))
    overload = getattr(schema, "overload_name", "")
    find_schema = torch._C._dispatch_find_schema_or_throw
    try:
        find_schema(name, overload)
    except RuntimeError:
        return False  # TorchScript-only built-ins are not operators of the dispatcher
    if name.startswith(BAGS):
        return "__torch__" not in str(schema)
    return name.partition("::")[0] in LIBRARIES


def _line(schema: object) -> str:
    import torch

    name = getattr(schema, "name", "")
    overload = getattr(schema, "overload_name", "")
    full = f"{name}.{overload}" if overload else name
    composite = torch._C._dispatch_has_kernel_for_dispatch_key(full, "CompositeImplicitAutograd")
    tags = _tags(name, overload)
    flags = "c" if composite else ""
    flags += "r" if torch.Tag.nondeterministic_seeded in tags else ""
    flags += "p" if torch.Tag.pointwise in tags else ""
    return f"{flags or '-'} {schema}"


def _order(line: str) -> tuple[str, str]:
    """Return the sort key of a line: readers use the first overload that fits."""
    flags, _, text = line.partition(" ")
    return flags.replace("p", "") or "-", text


def _tags(name: str, overload: str) -> Collection[object]:
    import torch

    library, _, base = name.partition("::")
    packet = getattr(getattr(torch.ops, library), base, None)
    op = getattr(packet, overload or "default", None)
    tags: Collection[object] = getattr(op, "tags", ())
    return tags


if __name__ == "__main__":
    sys.exit(main())
