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
    if sys.path and sys.path[0] in ("", os.getcwd()):  # noqa: PTH109
        # folders of the user's, such as passes/, must not stand for packages of irgraph's
        sys.path.append(sys.path.pop(0))
    sys.exit(run())
