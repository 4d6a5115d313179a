"""Run the command line: ``python -m irgraph``."""

import sys

from irgraph.cli.main import main

sys.exit(main())
