"""Run the command line: ``irgraph``, or ``python -m irgraph``."""

import os
import sys


def run() -> int:
    """Run the command line; an interrupt is one line, even while it is still being loaded."""
    try:
        from irgraph.cli.main import main

        return main()
    except KeyboardInterrupt:
        os.write(2, b"interrupted\n")
        return 130


if __name__ == "__main__":
    here = os.getcwd()  # noqa: PTH109
    if sys.path and sys.path[0] in ("", here):
        # neither modules of a folder of the user's nor packages installed there are to run
        del sys.path[0]
        if here == os.path.dirname(os.path.dirname(os.path.abspath(__file__))):  # noqa: PTH100, PTH120
            sys.path.append(here)
    sys.exit(run())
