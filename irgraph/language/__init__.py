"""The transformation language: text, objects, checks, matching, and running."""

from irgraph.language.evaluate import Pricer
from irgraph.language.library import load_pass
from irgraph.language.parse import parse_pipeline
from irgraph.language.parse import parse_script as load_script
from irgraph.language.report import Entry, Outcome, Report
from irgraph.language.run import check_script, run
from irgraph.language.tree import Pass, Script

__all__ = [
    "Entry",
    "Outcome",
    "Pass",
    "Pricer",
    "Report",
    "Script",
    "check_script",
    "load_pass",
    "load_script",
    "parse_pipeline",
    "run",
]
