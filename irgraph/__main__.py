"""Run the command line: ``irgraph``, or ``python -m irgraph``."""

import gc
import os
import sys

ALLOCATIONS = 500_000
"""Number of allocations between two garbage collections. With Python's default of 700, a short
command spends a fifth of its time searching for cycles that do not exist."""


def run() -> int:
    """Run the command line; an interrupt prints one line, even during the imports."""
    gc.set_threshold(ALLOCATIONS)
    try:
        from irgraph.cli.main import main

        return main()
    except KeyboardInterrupt:
        os.write(2, b"interrupted\n")
        return 130
    finally:
        gc.freeze()  # a process that ends has no use for a last search


if __name__ == "__main__":
    working_folder = os.getcwd()  # noqa: PTH109
    if sys.path and sys.path[0] in ("", working_folder):
        # neither modules in the user's folder nor packages installed there may run
        del sys.path[0]
        if working_folder == os.path.dirname(os.path.dirname(os.path.abspath(__file__))):  # noqa: PTH100, PTH120
            sys.path.append(working_folder)
    sys.exit(run())
