"""Prints the model of a program's step, with torchvision as the zoo imports it.

python -m tests.capture.programs.captured PROGRAM [ARGUMENT ...]
"""

from __future__ import annotations

import sys

MARK = "--- the model ---\n"

if __name__ == "__main__":
    import irgraph
    import tests.zoo.stubs  # noqa: F401

    captured = irgraph.capture_file(sys.argv[1], arguments=sys.argv[2:])
    sys.stdout.write(MARK + irgraph.print_graph(captured.graph))
