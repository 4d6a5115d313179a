"""Write ``torch_schemas.txt`` from the installed torch: ``python -m irgraph.ir.generate_schemas``.

One line per overload: flags, a blank, and torch's own schema string. Flags: ``c`` where the op
is made of other ops (CompositeImplicitAutograd), ``r`` where it draws random numbers, ``-`` else.
"""

from __future__ import annotations

import sys
from pathlib import Path

LIBRARIES = ("aten", "prims", "c10d", "c10d_functional", "_c10d_functional")


def main() -> int:
    """Write the file beside this module and say how many schemas it holds."""
    import torch

    torch._refs  # noqa: B018  (registers prims)
    lines = sorted(_line(schema) for schema in torch._C._jit_get_all_schemas() if _kept(schema))
    path = Path(__file__).with_name("torch_schemas.txt")
    path.write_text(f"# torch {torch.__version__}\n" + "\n".join(lines) + "\n", encoding="utf-8")
    sys.stdout.write(f"{path}: {len(lines)} schemas of torch {torch.__version__}\n")
    return 0


def _kept(schema: object) -> bool:
    import torch

    name = str(getattr(schema, "name", ""))
    overload = getattr(schema, "overload_name", "")
    known = torch._C._dispatch_find_schema_or_throw
    try:
        known(name, overload)
    except RuntimeError:
        return False  # TorchScript-only built-ins are not operators of the dispatcher
    return name.partition("::")[0] in LIBRARIES


def _line(schema: object) -> str:
    import torch

    name = getattr(schema, "name", "")
    overload = getattr(schema, "overload_name", "")
    full = f"{name}.{overload}" if overload else name
    composite = torch._C._dispatch_has_kernel_for_dispatch_key(full, "CompositeImplicitAutograd")
    flags = ("c" if composite else "") + ("r" if _is_random(name, overload) else "")
    return f"{flags or '-'} {schema}"


def _is_random(name: str, overload: str) -> bool:
    import torch

    library, _, base = name.partition("::")
    packet = getattr(getattr(torch.ops, library), base, None)
    op = getattr(packet, overload or "default", None)
    return torch.Tag.nondeterministic_seeded in getattr(op, "tags", ())


if __name__ == "__main__":
    sys.exit(main())
