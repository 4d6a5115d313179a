"""The folder of reference measurements."""

from __future__ import annotations

import os
from pathlib import Path

from irgraph.diagnostics import fail


def measurements() -> Path:
    """Return the folder ``IRGRAPH_DATA``. Raises ``IrgraphError`` if it is unset."""
    folder = os.environ.get("IRGRAPH_DATA")
    if not folder:
        hint = "set IRGRAPH_DATA to a folder with kernels/, labels/ and paper/"
        raise fail("no reference measurements to compare with", hint=hint, exit_code=2)
    return Path(folder)
