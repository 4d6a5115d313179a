"""What a newcomer to the language meant: hints for texts that do not fit its grammar."""

from __future__ import annotations

import re
from collections.abc import Mapping

from irgraph.diagnostics import Diagnostic, place_at

HERE = "\0"
"""Stands in a text where the grammar refused it."""

WINDOW = 200
"""Characters before that place which a slip may take in."""

MEANT: Mapping[str, str] = {
    "remove": "delete|drop|erase|eliminate|prune", "replace": "rewrite|substitute|swap|change",
    "cast": "convert", "reorder": "move|hoist|sink|schedule", "fuse": "merge|combine",
    "insert": "add|append", "expect": "assert|require|check|verify", "apply": "run|call|use|do",
    "find": "match|select|search|print|show", "let": "set|var|const|define", "target": "device",
    "parallelize": "parallelise|parallel|concurrent",
}  # fmt: skip
"""Statements, and by what other verbs people call them."""

LOOP = (
    "there are no loops over ops: 'many' takes every match, as in remove many aten.t(...); "
    "'repeat at most 8 { ... }' runs statements again, 'sweep' tries values"
)
COMMENT = "a comment starts with '#'"
CAST = "as in cast many aten.mm(...) to bf16"
EXPECT = "as in expect 2 aten.relu, or expect no aten.relu"
NAMED = "arguments have names, as in fuse-embedding(least = 2)"
PARALLELIZE = "as in parallelize many aten.mm over 2 streams"
PASS = 'as in pass tidy "What it does." { remove many aten.t(...) }'
REPEAT = "say how often at most: repeat at most 8 { ... }"
RESIZE = "as in resize B = 64"
SWAP = "as in using %x for %y: the users of %y read %x"

START = rf"(?:\A|[\n{{}}])\s*{HERE}"
"""Where a statement begins a line or a block."""

SLIPS: Mapping[str, str] = {
    rf"\b(?:resize|let|find)\b[^{{}}\n]*={HERE}=": "a single '=' gives a value",
    rf"\b(?:where|having)\b[^{{}}]*{HERE}=": "to compare write '=='",
    rf"\b(?:where|having|and|or|not)\b[^{{}}\n]*{HERE}is\b": "to compare write '=='",
    f"{HERE};": "no ';' is needed: a statement ends where the next one begins",
    f"{HERE}(?://|/\\*)": COMMENT,
    rf"\w\s*/{HERE}/": f"'/' divides; {COMMENT}",
    f"{HERE}&": "write 'and'",
    f"{HERE}[|]": "write 'or'",
    f"{HERE}!": "write 'not'",
    f"{HERE}'": "strings have double quotes",
    f"{HERE}(?:for|foreach|while|loop)\\b": LOOP,
    f"{HERE}(?:if|else|elif|when|unless)\\b": (
        "there is no 'if': a condition chooses ops, as in remove many aten.t(%x) where %x.rank == 2"
    ),
    f"{HERE}(?:def|function|func|fn|proc|macro)\\b": PASS,
    f"{HERE}(?:import|from|include)\\b": "passes need no import: apply fuse-adam",
    rf"\brepeat\s+{HERE}": REPEAT,
    rf"\b(?:all|every|each)\s+{HERE}": "write 'many' for every match, as in remove many aten.t",
    rf"\bapply\s+[\w-]+{HERE}_": "names of passes have '-', not '_', as in apply fuse-adam",
    rf'\bapply\s+{HERE}"': "the name of a pass has no quotes, as in apply fuse-adam",
    rf"\bapply\s+[\w-]+\(\w+{HERE}:": "arguments have '=', as in fuse-embedding(least = 2)",
    rf"\bapply\s+[\w-]+\([^()]*{HERE}[\d\"]": NAMED,
    rf"(?:\A|[\n{{}}])\s*\w+{HERE}-[a-z]": "'apply' runs a pass, as in apply fuse-adam",
    rf"\bpass\s+[\w-]+\s*(?:\([^()]*\)\s*)?{HERE}\{{": f"say what the pass does, {PASS}",
    rf'\bpass\s+[\w-]+\s+[^{{}}\n]*"\s*{HERE}\w': f"its statements stand in {{ }}, {PASS}",
    rf"\bexpect\s+{HERE}": EXPECT,
    rf"\bcast\s[^{{}}\n]*{HERE}(?:as|into|=|\w+\s*(?:\Z|\n))": CAST,
    rf"\bresize\s+\w+\s*{HERE}": RESIZE,
    rf"\bfind\s+\w+\s*{HERE}": "give the ops a name: find relus = many aten.relu",
    rf"\btarget\s*{HERE}=": 'as in target "v100"',
    rf"\breplace\s[^{{}}\n]*{HERE}(?:by|to|into|as|=>|->)": "as in replace PATTERN with OPS",
    rf"\bfuse\s[^{{}}\n]*{HERE}(?:by|to|with|as|=>|->)": "as in fuse PATTERN into OP",
    rf"\bremove\s[^{{}}\n]*{HERE}with\b": SWAP,
    rf"\busing\s+%\w+\s*{HERE}": SWAP,
    rf"\bparallelize\s[^{{}}\n]*{HERE}(?:on|across|in|\Z)": PARALLELIZE,
    rf"\breorder\s[^{{}}\n]*{HERE}to\b": "as in reorder many aten.t earliest, or before aten.mm",
    rf"\bsweep\b[^{{}}]*\{{.*\}}{HERE}\Z": "say what to report, as in report step.time",
    f"{HERE}in\\s+(?:module|phase)\\b": 'as in within "bot", or within forward',
    rf"\bwithin\s+{HERE}\w": 'the path of a module has quotes, as in within "bot"',
    rf"\d\s+{HERE}(?:ns|us|ms|s|[KMGT]i?B|B)\b": "the unit follows the number at once, as in 5us",
    rf"\w:{HERE}:": "the library and the op are joined by '.', as in aten.relu",
    rf"[(,]\s*[a-z]\w*{HERE}\s*[,)]": "tensors have a '%', as in aten.relu(%x)",
    rf"\b[a-z]\w*\s*{HERE}=\s*\w+\.": "tensors have a '%', as in %y = aten.relu(%x)",
    rf"\b(?:many|remove|before|after|with|into)\s+\w+{HERE}\(": (
        "an op has the name of its library, as in aten.relu(...)"
    ),
    rf"\.\w+{HERE}\(": "a property takes no arguments, as in %x.shape[0] or %x.rank",
    rf"\(\d+{HERE},": "a list has [ ], as in %x.shape == [8, 8]",
    rf"\({HERE}[*]": "further operands are '...', as in aten.mm(...)",
    f"{START}\\w+\\s*=": "to name a value write let a = 3; to size a dimension, resize B = 64",
}
"""What people write by habit, with the place where it is refused, and what to write instead."""


def hint(text: str, at: int) -> str:
    """Return what to write instead of what was refused at an offset of a text, if it is known."""
    around = text[max(0, at - WINDOW) : at] + HERE + text[at : at + WINDOW]
    if text[at : at + 1] == "}" and text.count("{", 0, at) <= text.count("}", 0, at):
        return "no '{' is open here: is one missing above, or is this '}' too many?"
    found = next((told for slip, told in SLIPS.items() if re.search(slip, around)), "")
    return found or _verb(text[at:])


def _verb(rest: str) -> str:
    """Return by what word a statement is called that begins with another."""
    first = re.match(r"[A-Za-z]+\b(?!\s*[.=(])", rest)
    for verb, others in MEANT.items():
        if first and first[0].lower() in (verb, *others.split("|")):
            return f"write '{verb}'"
    return ""


def unclosed(text: str, source: str) -> tuple[Diagnostic, ...]:
    """Return notes about the braces that a text opens and never closes."""
    opened: list[int] = []
    for token in re.finditer(r'"(?:\\.|[^"\\\n])*"|#[^\n]*|[{}]', text):
        if token[0] == "{":
            opened.append(token.start())
        elif token[0] == "}" and opened:
            opened.pop()
    return tuple(
        Diagnostic("this '{' is not closed", place_at(text, source, at), severity="note")
        for at in opened
    )
