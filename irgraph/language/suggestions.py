"""Hints for texts that do not fit the language's grammar, by habits of other languages."""

from __future__ import annotations

import re
from collections.abc import Mapping

from irgraph.diagnostics import Diagnostic, place_at

CURSOR = "\0"
"""Marks the position in a text at which the grammar refused it."""

WINDOW = 200
"""Characters before and after that position in which a slip is searched."""

SYNONYMS: Mapping[str, str] = {
    "remove": "delete|drop|erase|eliminate|prune", "replace": "rewrite|substitute|swap|change",
    "cast": "convert", "reorder": "move|hoist|sink|schedule", "fuse": "merge|combine",
    "insert": "add|append", "expect": "assert|require|check|verify", "apply": "run|call|use|do",
    "find": "match|select|search|print|show", "let": "set|var|const|define", "target": "device",
    "parallelize": "parallelise|parallel|concurrent",
}  # fmt: skip
"""Statements, and other verbs by which people call them."""

LOOP = (
    "there are no loops over ops: 'many' takes every match, as in remove many aten.t(...); "
    "'repeat at most 8 { ... }' runs statements again, 'sweep' tries values"
)
COMMENT = "a comment starts with '#'"
EXPECT = "as in expect 2 aten.relu, or expect no aten.relu"
NAMED_ARGUMENTS = "arguments have names, as in fuse-embedding(least = 2)"
PASS = 'as in pass tidy "What it does." { remove many aten.t(...) }'
RESIZE = "as in resize B = 64"
SWAP = "as in using %x for %y: the users of %y read %x"

START = rf"(?:\A|[\n{{}}])\s*{CURSOR}"
"""Regular expression of a statement at the start of a line or a block."""

SLIPS: Mapping[str, str] = {
    rf"\b(?:resize|let|find)\b[^{{}}\n]*={CURSOR}=": "a single '=' gives a value",
    rf"\b(?:where|having)\b[^{{}}]*{CURSOR}=": "to compare write '=='",
    rf"\b(?:where|having|and|or|not)\b[^{{}}\n]*{CURSOR}is\b": "to compare write '=='",
    f"{CURSOR};": "no ';' is needed: a statement ends where the next one begins",
    f"{CURSOR}(?://|/\\*)": COMMENT,
    f"{CURSOR}&": "write 'and'",
    f"{CURSOR}[|]": "write 'or'",
    f"{CURSOR}!": "write 'not'",
    f"{CURSOR}'": "strings have double quotes",
    f"{CURSOR}(?:for|foreach|while|loop)\\b": LOOP,
    f"{CURSOR}(?:if|else|elif|when|unless)\\b": (
        "there is no 'if': a condition chooses ops, as in remove many aten.t(%x) where %x.rank == 2"
    ),
    f"{CURSOR}(?:def|function|func|fn|proc|macro)\\b": PASS,
    f"{CURSOR}(?:import|from|include)\\b": "passes need no import: apply fuse-adam",
    rf"\b(?:all|every|each)\s+{CURSOR}": "write 'many' for every match, as in remove many aten.t",
    rf"\bapply\s+[\w-]+{CURSOR}_": "names of passes have '-', not '_', as in apply fuse-adam",
    rf'\bapply\s+{CURSOR}"': "the name of a pass has no quotes, as in apply fuse-adam",
    rf"\bapply\s+[\w-]+\(\w+{CURSOR}:": "arguments have '=', as in fuse-embedding(least = 2)",
    rf"\bapply\s+[\w-]+\([^()]*{CURSOR}[\d\"]": NAMED_ARGUMENTS,
    rf"(?:\A|[\n{{}}])\s*\w+{CURSOR}-[a-z]": "'apply' runs a pass, as in apply fuse-adam",
    rf"\bpass\s+[\w-]+\s*(?:\([^()]*\)\s*)?{CURSOR}\{{": f"say what the pass does, {PASS}",
    rf'\bpass\s+[\w-]+\s+[^{{}}\n]*"\s*{CURSOR}\w': f"its statements stand in {{ }}, {PASS}",
    rf"\bexpect\s+{CURSOR}": EXPECT,
    rf"\bresize\s+\w+\s*{CURSOR}": RESIZE,
    rf"\bfind\s+\w+\s*{CURSOR}": "give the ops a name: find relus = many aten.relu",
    rf"\btarget\s*{CURSOR}=": 'as in target "v100"',
    rf"\bremove\s[^{{}}\n]*{CURSOR}with\b": SWAP,
    rf"\busing\s+%\w+\s*{CURSOR}": SWAP,
    rf"\breorder\s[^{{}}\n]*{CURSOR}to\b": "as in reorder many aten.t earliest, or before aten.mm",
    f"{CURSOR}in\\s+(?:module|phase)\\b": 'as in within "bot", or within forward',
    rf"\bwithin\s+{CURSOR}\w": 'the path of a module has quotes, as in within "bot"',
    rf"\d\s+{CURSOR}(?:ns|us|ms|s|[KMGT]i?B|B)\b": "the unit follows the number at once, as in 5us",
    rf"\w:{CURSOR}:": "the library and the op are joined by '.', as in aten.relu",
    rf"[(,]\s*[a-z]\w*{CURSOR}\s*[,)]": "tensors have a '%', as in aten.relu(%x)",
    rf"\b[a-z]\w*\s*{CURSOR}=\s*\w+\.": "tensors have a '%', as in %y = aten.relu(%x)",
    rf"\b(?:many|remove|before|after|with|into)\s+\w+{CURSOR}\(": (
        "an op has the name of its library, as in aten.relu(...)"
    ),
    rf"\.\w+{CURSOR}\(": "a property takes no arguments, as in %x.shape[0] or %x.rank",
    rf"\(\d+{CURSOR},": "a list has [ ], as in %x.shape == [8, 8]",
    rf"\({CURSOR}[*]": "further operands are '...', as in aten.mm(...)",
    f"{START}\\w+\\s*=": "to name a value write let a = 3; to size a dimension, resize B = 64",
}
"""Regular expressions of habits, each with the refused position, and the advice for each."""


def habit_hint(text: str, offset: int) -> str:
    """Return the advice for a text that is refused at an offset; ``""`` if there is none."""
    window = text[max(0, offset - WINDOW) : offset] + CURSOR + text[offset : offset + WINDOW]
    if text[offset : offset + 1] == "}" and text.count("{", 0, offset) <= text.count(
        "}", 0, offset
    ):
        return "no '{' is open here: is one missing above, or is this '}' too many?"
    advice = next((advice for slip, advice in SLIPS.items() if re.search(slip, window)), "")
    return advice or _verb_hint(text[offset:])


def _verb_hint(rest: str) -> str:
    """Return the advice for a statement that begins with a synonym of its verb; ``""`` if not."""
    first = re.match(r"[A-Za-z]+\b(?!\s*[.=(])", rest)
    for verb, synonyms in SYNONYMS.items():
        word = first[0] if first else ""
        if word != verb and word.lower() in (verb, *synonyms.split("|")):
            return f"write '{verb}'"
    return ""


def unclosed_brace_notes(text: str, source: str) -> tuple[Diagnostic, ...]:
    """Return notes about the braces of a text that are not closed."""
    open_offsets: list[int] = []
    for token in re.finditer(r'"(?:\\.|[^"\\\n])*"|#[^\n]*|[{}]', text):
        if token[0] == "{":
            open_offsets.append(token.start())
        elif token[0] == "}" and open_offsets:
            open_offsets.pop()
    return tuple(
        Diagnostic("this '{' is not closed", place_at(text, source, offset), severity="note")
        for offset in open_offsets
    )
