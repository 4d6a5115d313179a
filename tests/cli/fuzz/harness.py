"""Runs commands in this process on damaged input and judges what they do.

A case fails where a command ends in an internal error or a traceback, exits with a code that is
none of its own, takes more than ``SECONDS`` of the processor or ``BYTES``, writes JSON that is none
or raw control characters, or says nothing of a file that lost its end, or a trace that lost records
or whole steps in valid JSON, and gives other figures.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

from irgraph.cli.main import main as irgraph
from tests.capture.execution_trace.fuzz import drop, odd_value, swap
from tests.capture.kineto.builder import STEP_US
from tests.capture.kineto.reading.fuzz import DAMAGES
from tests.cli.fuzz.seeds import FORMATS, ODD, OPTIONS, Format
from tests.cli.fuzz.stores import odd_number

SECONDS, BYTES = 20, 2 << 30
CODES = (0, 1, 2, 3, 4)
_RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069]")


def odd_text(data: Any, rng: random.Random) -> None:
    """Put a text in the place of a value that terminals, files or parsers may stumble over."""
    with patch("tests.capture.execution_trace.fuzz.ODD", TEXTS):
        odd_value(data, rng)


TEXTS = (
    "\ud800",
    "\x1b[2J",
    "\u202e",
    "a\0b",
    "x" * 100_000,
    "9" * 5000,
    1e30,
    -1e30,
    2**70,
    1e308,
)
STRUCTURAL = (odd_value, odd_value, odd_text, drop, swap)


@dataclass(frozen=True)
class Case:
    """A command line, and what one of its files holds.

    Attributes:
        data: the damaged file, ``None`` where only options are odd.
        lost: whether the file lost its end, or records that are numbered.
    """

    kind: str
    arguments: tuple[str, ...]
    data: bytes | None = None
    file: str = ""
    lost: bool = False


@dataclass(frozen=True)
class Ran:
    """What a command did."""

    code: int
    out: str
    err: str


stopped: list[int] = []
"""Filled when this process is asked to end: what was tried by then is still told."""


class _SlowError(BaseException):
    """A command took too long."""


def case(seed: int, folder: Path) -> Case:
    """Return the case of a seed."""
    rng = random.Random(seed)
    names = [*FORMATS, "options", "options"]
    kind = rng.choice(names)
    if kind == "options":
        command = rng.choice(list(OPTIONS))
        options = [
            w
            for _ in range(rng.choice((1, 1, 2)))
            for w in (rng.choice(OPTIONS[command]), rng.choice(ODD))
        ]
        return Case(kind, (*command, *options))
    chosen = FORMATS[kind]
    sound = (folder / chosen.file).read_bytes()
    data, lost = damaged(sound, chosen, rng)
    name = chosen.place or f"damaged{Path(chosen.file).suffix}"
    if chosen.change is not None and rng.random() < 0.4:
        changed = folder / "changed"
        changed.write_bytes(sound)
        chosen.change(changed, rng)
        data, lost = changed.read_bytes(), chosen.hashed
    command = rng.choice(chosen.commands)
    lost = lost or chosen.hashed
    arguments = tuple(name if word == "@" else word for word in command)
    return Case(kind, arguments, data, name, lost)


def damaged(sound: bytes, of: Format, rng: random.Random) -> tuple[bytes, bool]:
    """Return a damaged file, and whether it lost its end (at least 16 bytes of it) or records."""
    if rng.random() < 0.2:
        end = rng.randrange(len(sound))
        return sound[:end], of.framed and end < len(sound) - 16
    if of.records and rng.random() < 0.2:
        return fewer(json.loads(sound), of.records, rng), True
    if of.file.endswith(".json") and rng.random() < 0.6:
        value = {"": json.loads(sound)}
        for _ in range(rng.choice((1, 1, 2, 4))):
            with contextlib.suppress(LookupError, TypeError, ValueError):
                rng.choice(STRUCTURAL)(_nodes(value), rng)
        return json.dumps(value.get("")).encode(), False
    if of.file.endswith((".ir", ".toml", ".irg", ".jsonl", ".json")) and rng.random() < 0.4:
        return odd_number(sound, rng), False
    return rng.choice(DAMAGES)(bytearray(sound), rng), False


def fewer(trace: Any, key: str, rng: random.Random) -> bytes:
    """Take out a record, or whole steps: all that begins within one or two of them.

    What is numbered last stays, with what it launched: of records after it nothing tells.
    """
    records = trace[key]
    marks = [r["ts"] for r in records if "ts" in r and r["name"].startswith("ProfilerStep")]
    if marks and rng.random() < 0.6:
        begin = rng.choice(marks)
        end = begin + rng.choice((1, 2)) * (STEP_US + 10)
        trace[key] = [record for record in records if not begin <= record["ts"] < end]
    else:
        del records[rng.randrange(len(records) - 4)]
    return json.dumps(trace).encode()


def _nodes(value: Any) -> Any:
    """Return a value with the list that ``swap`` looks for."""
    return {**value, "nodes": [value[""]]} if isinstance(value.get(""), dict) else value


def run(arguments: Sequence[str]) -> Ran:
    """Run a command in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), _within(SECONDS):
        code = irgraph(arguments)
    return Ran(code, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def _within(seconds: int) -> Iterator[None]:
    def stop(_: int, __: FrameType | None) -> None:
        raise _SlowError

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def judged(one: Case, sound: dict[tuple[str, ...], str]) -> tuple[str, str]:
    """Run a case and return how it went, and what is wrong about it (``""`` if nothing)."""
    try:
        ran = run(one.arguments)
    except _SlowError:
        return "slow", f"more than {SECONDS} s"
    except MemoryError:
        return "large", f"more than {BYTES:,} bytes"
    except BaseException as error:
        return "raised", repr(error)[:300]
    if ran.code not in CODES or "internal error" in ran.err or "Traceback" in ran.err:
        return "internal error", ran.err[:400] or f"exit code {ran.code}"
    raw = _RAW.search(ran.err)
    if raw:
        return "raw", f"control character {raw[0]!r} in {ran.err[:200]!r}"
    prints_json = "--json" in one.arguments and one.arguments[0] != "explore"  # its FILE follows
    if ran.code in (0, 3) and prints_json:
        try:
            json.loads(ran.out, parse_constant=_no_constant)
        except ValueError as error:
            return "no JSON", f"{error}: {ran.out[:200]}"
    if one.lost and ran.code == 0 and not ran.err and ran.out != sound.get(one.arguments, ran.out):
        return "silent", "the file lost its end or records, and gave other figures without a word"
    return f"exit {ran.code}", ""


def _no_constant(word: str) -> None:
    raise ValueError(f"{word} is no JSON")


@contextlib.contextmanager
def workplace() -> Iterator[Path]:
    """Make a folder with a sound file of each format, and stand in it."""
    with tempfile.TemporaryDirectory() as name:
        folder, back = Path(name), Path.cwd()
        for one_format in FORMATS.values():
            one_format.write(folder / one_format.file)
        (folder / "loop").symlink_to("loop")
        os.chdir(folder)
        try:
            yield folder
        finally:
            os.chdir(back)


def baseline() -> dict[tuple[str, ...], str]:
    """Return what commands print of sound files, by the arguments of the damaged ones."""
    found = {}
    for one_format in FORMATS.values():
        if not one_format.framed and not one_format.hashed:
            continue
        name = one_format.place or f"damaged{Path(one_format.file).suffix}"
        Path(name).write_bytes(Path(one_format.file).read_bytes())
        for command in one_format.commands:
            arguments = tuple(name if word == "@" else word for word in command)
            found[arguments] = run(arguments).out
    return found


def fuzz(count: int, first: int = 0) -> tuple[Counter[str], dict[int, str]]:
    """Try seeds and return how often each outcome came, and what failed by its seed."""
    counts: Counter[str] = Counter()
    failed: dict[int, str] = {}
    with workplace() as folder:
        sources = {folder / one.file: (folder / one.file).read_bytes() for one in FORMATS.values()}
        sound = baseline()
        gc.freeze()  # torch and all tables stay: no need to go through them again and again
        for seed in range(first, first + count):
            if stopped:
                break
            one = case(seed, folder)
            if one.data is not None:
                for left in folder.glob(f"{one.file}-*"):  # journals of another database
                    left.unlink()
                # an earlier command of this process may still lock the old file
                Path(one.file).unlink(missing_ok=True)
                Path(one.file).write_bytes(one.data)
            outcome, wrong = judged(one, sound)
            counts[f"{one.kind}: {outcome}"] += 1
            if wrong:
                failed[seed] = f"{one.kind} {[word[:60] for word in one.arguments]}: {wrong}"
                sys.stderr.write(f"seed {seed}: {failed[seed]}\n")
            for path, data in sources.items():
                _restore(path, data)
    return counts, failed


def _restore(path: Path, data: bytes) -> None:
    """Write a sound file again if a command overwrote or removed it."""
    if path.is_dir():
        shutil.rmtree(path)
    if not path.exists() or path.read_bytes() != data:
        path.write_bytes(data)


def main(arguments: Sequence[str]) -> str:
    """Try that many and return what went wrong, nothing if all is well."""
    count = int(arguments[0]) if arguments else 1000
    first = int(arguments[1]) if len(arguments) > 1 else 0
    resource.setrlimit(resource.RLIMIT_DATA, (BYTES, BYTES))
    signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
    begun = time.monotonic()
    counts, failed = fuzz(count, first)
    minutes = (time.monotonic() - begun) / 60
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    for outcome, times in sorted(counts.items()):
        sys.stdout.write(f"{outcome:40} {times:8,}\n")
    sys.stdout.write(
        f"{counts.total():,} cases from seed {first:,}, peak {peak / 2**20:,.0f} MiB, "
    )
    sys.stdout.write(f"{minutes:.0f} minutes, {time.process_time() / 60:.0f} of the processor\n")
    if peak > BYTES:
        return "more than 2 GiB"
    return f"{len(failed)} cases failed" if failed else ""
