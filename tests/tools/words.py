"""Count names and phrases that a stranger has to read twice, and allow fewer of them each time.

    python -m tests.tools.words                  compare the counts with words.json
    python -m tests.tools.words --update         lower the counts of words.json to today's
    python -m tests.tools.words --list RULE      print each occurrence of a rule
    python -m tests.tools.words --message FILE   check the subject of a commit message
    python -m tests.tools.words --subjects       check the subjects of commits since the last tag

``words.json`` records the largest count allowed of each rule. A count that is larger fails.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import subprocess
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
RATCHET = Path(__file__).with_suffix(".json")
SOURCES = ("irgraph", "costmodels", "passes", "grammars", "examples")
PAGES = ("docs", "README.md", "CONTRIBUTING.md")

MAX_SUBJECT = 60
"""Characters of a commit subject: what a log on one line and a list of changes can show."""

MIN_WORDS = 2
"""Words of a commit subject: a verb and its object."""

PARTICIPLE = re.compile(
    "found|made|held|kept|told|said|taken|asked|given|drawn|shown|known|left|lost|gone|met|laid|"
    "spent|wanted|looked|tried|moved|named|placed|put|shared|joined|parted|lying"
)
PRONOUN = re.compile(
    "one|mine|theirs|own|at|of|by|to|here|there|where|what|how|why|beside|together|apart|alone|"
    "alike|each|every|both|near|now|most|least|like|whole|nothing|some"
)
STATE = re.compile("late|needed|described|steady|fresh|returned")

CLAUSE = re.compile(r"(What|When|How|Whether|Where|Which|Who|That)\b")
PRIVATE_VERB = re.compile(r"(Let|Say|Tell|Give|Hold|Put|Take|Keep|Make|Ask|Know|Mend|Bring)\b")

PHRASES = {
    "what-clause": r"\bwhat\b(?! (?:follows|if)\b)",
    "so-many": r"\bso (?:many|much of)\b|\bhow many-th\b|\bas many as there\b",
    "keep": r"\b(?:keeps?|kept|keeping)\b",
    "tell": r"\b(?:tells?|told|telling)\b(?! (?:you|how|irgraph)\b)",
    "hold-against": r"\b(?:held|holds?) (?:\w+ ){0,3}against\b",
    "stand": r"\b(?:stands?|stood|standing)\b",
    "work-out": r"\bwork(?:s|ed|ing)? (?:\w+ )?out\b",
    "lie": r"\b(?:lies?|lying|lay)\b(?! (?:of|outs?)\b)",
    "mend": r"\bmend(?:s|ed|ing)?\b",
    "hand-on": r"\b(?:hand(?:s|ed|ing)? (?:\w+ )?(?:on|over)|gives? back|given back)\b",
    "beside": r"\bbeside\b",
    "alike": r"\b(?:alike|apart|anew)\b",
    "become-of": r"\bbec(?:ame|omes?) of\b",
    "of-its-own": r"\bof (?:its|their|our|his|your) own\b|\bof (?:ours|yours|theirs|mine)\b",
    "where-condition": r"\bwhere (?:there|it|they|none?|that|one|an?|the|this|its|all|some|any)\b",
    "as-it-was": r"\bas (?:it|they|that|those) (?:is|are|was|were|stood?|had|has|have)\b",
    "come-out": r"\b(?:comes?|came|coming) (?:out|again|back)\b",
    "who-asks": r"\bwho (?:asks?|use[sd]?|prices?|reads?|calls?|comes?|takes?)\b",
    "that-of": r"\b(?:that|those) (?:of|which|that)\b",
    "in-place-of": r"\bin (?:the )?place of\b|\bin its stead\b",
    "ask": r"\b(?:asks?|asked|asking)\b",
    "go": r"\b(?:goes|go|going|gone|went)\b(?! back\b)",
    "nobody": r"\b(?:nobody|somebody|whoever|whichever|whatever)\b",
    "say": r"\b(?:says?|said)\b",
    "by-itself": r"\bby (?:themselves|itself)\b|\bfor itself\b",
}
PATTERNS = {rule: re.compile(pattern, re.IGNORECASE) for rule, pattern in PHRASES.items()}


class Finding(NamedTuple):
    """An occurrence of a rule."""

    file: str
    line: int
    rule: str
    text: str


def name_rule(name: str) -> str | None:
    """Return the rule that a defined name breaks, if any."""
    bare = name.strip("_").lower()
    if PARTICIPLE.fullmatch(bare):
        return "participle"
    if PRONOUN.fullmatch(bare) and not name.isupper():
        return "pronoun"
    if {"MOST", "LEAST"} & set(name.split("_")):
        return "most-constant"
    return None


def defined_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and name of each variable, parameter, function and class definition."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.lineno, node.name
            case ast.arg():
                yield node.lineno, node.arg
            case ast.Name(ctx=ast.Store()):
                yield node.lineno, node.id


def docstrings(tree: ast.AST) -> Iterator[tuple[int, str, str]]:
    """Yield line, owner (``function``, ``property``, ``class``, ``attribute``) and text."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        for position, child in enumerate(body):
            match child:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    yield child.lineno, _owner(node) if position == 0 else "attribute", text


def _owner(node: ast.AST) -> str:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        decorators = " ".join(map(ast.unparse, node.decorator_list))
        return "property" if "property" in decorators else "function"
    return "class" if isinstance(node, ast.ClassDef) else "attribute"


def phrases(file: str, line: int, text: str) -> Iterator[Finding]:
    """Yield the phrases in a text; code in backquotes does not count."""
    prose = re.sub(r"`+[^`]*`+", lambda code: " " * len(code[0]), text)
    for rule, pattern in PATTERNS.items():
        for match in pattern.finditer(prose):
            yield Finding(file, line + prose.count("\n", 0, match.start()), rule, match[0])


def source_findings(file: str, text: str) -> Iterator[Finding]:
    """Yield what a Python file breaks: names, first words of docstrings, phrases."""
    tree = ast.parse(text)
    for line, name in defined_names(tree):
        if rule := name_rule(name):
            yield Finding(file, line, rule, name)
    for line, owner, doc in docstrings(tree):
        yield from phrases(file, line, doc)
        start = doc.split("\n", 1)[0][:60]
        if owner != "property" and CLAUSE.match(doc):
            yield Finding(file, line, "doc-clause", start)
        if owner in ("function", "class") and PRIVATE_VERB.match(doc):
            yield Finding(file, line, "doc-verb", start)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield from phrases(file, token.start[0], token.string)
    stem = Path(file).stem
    if any(pattern.fullmatch(stem) for pattern in (PARTICIPLE, PRONOUN, STATE)):
        yield Finding(file, 1, "file-name", stem)


def page_findings(file: str, text: str) -> Iterator[Finding]:
    """Yield the phrases of a Markdown page, outside code blocks."""
    fenced = False
    lines = []
    for line in text.split("\n"):
        fence = line.lstrip().startswith("```")
        fenced ^= fence
        lines.append("" if fenced or fence or line.startswith("    ") else line)
    yield from phrases(file, 1, "\n".join(lines))


def class_findings(sources: dict[str, str]) -> Iterator[Finding]:
    """Yield the definitions of class names that at least three modules define."""
    definitions = defaultdict(list)
    for file, text in sources.items():
        for node in ast.parse(text).body:
            if isinstance(node, ast.ClassDef):
                definitions[node.name].append((file, node.lineno))
    for name, places in definitions.items():
        if len({file for file, _ in places}) >= 3:
            yield from (Finding(file, line, "class-name", name) for file, line in places)


def findings() -> list[Finding]:
    """Return all findings in the project's sources and pages."""
    sources = {
        str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
        for folder in SOURCES
        for path in sorted((ROOT / folder).rglob("*.py"))
    }
    result = [finding for file, text in sources.items() for finding in source_findings(file, text)]
    result += class_findings(sources)
    for name in PAGES:
        path = ROOT / name
        for page in sorted(path.rglob("*.md")) if path.is_dir() else [path]:
            text = page.read_text(encoding="utf-8")
            result += page_findings(str(page.relative_to(ROOT)), text)
    return result


def subject_fault(subject: str) -> str | None:
    """Return the fault of a commit subject, ``None`` if it has none."""
    if len(subject) > MAX_SUBJECT:
        return f"{len(subject)} characters, more than {MAX_SUBJECT}"
    if len(subject.split()) < MIN_WORDS:
        return "a single word: name the change and its object"
    verb = PRIVATE_VERB.match(subject)
    return f"begins with {verb[0]!r}: use a verb of the trade" if verb else None


def recent_subjects() -> list[str]:
    """Return the subjects of commits since the last tag, or else since the recorded commit.

    Empty if the history does not reach that far, as in a shallow clone or an unpacked archive.
    """
    tag = _git("describe", "--tags", "--abbrev=0")
    start = tag or json.loads(RATCHET.read_text(encoding="utf-8"))["subjects since"]
    return _git("log", "--no-merges", "--format=%s", f"{start}..HEAD").splitlines()


def _git(*arguments: str) -> str:
    """Return the output of a git command, empty if it fails or there is no git."""
    command = ["git", *arguments]
    try:
        run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (FileNotFoundError, subprocess.CalledProcessError):
        return ""
    return run.stdout.strip()


def subject_faults(subjects: list[str]) -> list[str]:
    """Return a line for each subject with a fault."""
    return [f"{text!r}: {fault}" for text in subjects if (fault := subject_fault(text))]


def exceeded_counts() -> list[str]:
    """Return a line for each rule whose count is larger than ``words.json`` allows."""
    allowed = json.loads(RATCHET.read_text(encoding="utf-8"))["counts"]
    counts = Counter(finding.rule for finding in findings())
    return [
        f"{rule}: {count}, at most {allowed.get(rule, 0)} (--list {rule} prints them)"
        for rule, count in sorted(counts.items())
        if count > allowed.get(rule, 0)
    ]


def lower_ratchet() -> None:
    """Replace each count of ``words.json`` by today's if that is lower."""
    ratchet = json.loads(RATCHET.read_text(encoding="utf-8"))
    counts = Counter(finding.rule for finding in findings())
    allowed = ratchet["counts"] or counts
    ratchet["counts"] = {rule: min(counts[rule], count) for rule, count in sorted(allowed.items())}
    RATCHET.write_text(json.dumps(ratchet, indent=2) + "\n", encoding="utf-8")


def main() -> int:
    """Run the check that the command line names; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--update", action="store_true")
    parser.add_argument("--list", metavar="RULE")
    parser.add_argument("--message", type=Path, metavar="FILE")
    parser.add_argument("--subjects", action="store_true")
    options = parser.parse_args()
    if options.update:
        lower_ratchet()
        return 0
    if options.list:
        chosen = [finding for finding in findings() if finding.rule == options.list]
        sys.stdout.writelines(f"{each.file}:{each.line}: {each.text}\n" for each in chosen)
        return 0
    if options.message:
        faults = subject_faults(options.message.read_text(encoding="utf-8").splitlines()[:1])
    elif options.subjects:
        faults = subject_faults(recent_subjects())
    else:
        faults = exceeded_counts()
    sys.stdout.writelines(f"{fault}\n" for fault in faults)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
