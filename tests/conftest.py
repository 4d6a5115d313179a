"""Fixtures that several test files share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Return the folder of reference measurements, or skip where none is named."""
    folder = os.environ.get("IRGRAPH_DATA")
    if not folder:
        pytest.skip("IRGRAPH_DATA is not set: no reference measurements to test against")
    return Path(folder)
