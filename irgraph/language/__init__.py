"""The transformation language: text, objects, checks, matching, and running."""

from irgraph.language.check import check_script
from irgraph.language.expressions.evaluate import Pricer
from irgraph.language.library import load_pass
from irgraph.language.parse import parse_pipeline
from irgraph.language.parse import parse_script as load_script
from irgraph.language.run import run
from irgraph.language.running.report import Entry, Outcome, Report
from irgraph.language.script import Pass, Script

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
