"""Run the command line: ``irgraph``, or ``python -m irgraph``."""

import gc
import os
import sys

ALLOCATIONS = 500_000
"""Objects made between two searches for garbage. By Python's default of 700 a command that starts,
prints and ends spends a fifth of its time looking for cycles that are not there."""


def run() -> int:
    """Run the command line; an interrupt is one line, even while it is still being loaded."""
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
        # neither modules of a folder of the user's nor packages installed there are to run
        del sys.path[0]
        if working_folder == os.path.dirname(os.path.dirname(os.path.abspath(__file__))):  # noqa: PTH100, PTH120
            sys.path.append(working_folder)
    sys.exit(run())
