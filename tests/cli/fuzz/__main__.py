"""``python -m tests.cli.fuzz COUNT [FIRST]`` tries that many cases from that seed on."""

import sys

from tests.cli.fuzz.harness import main

sys.exit(main(sys.argv[1:]) or 0)
