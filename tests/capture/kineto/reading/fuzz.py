"""Random damage to traces: never a traceback, never much memory, never silence.

``python -m tests.capture.kineto.reading.fuzz COUNT`` tries that many; ``make fuzz`` tries 10,000.
"""

from __future__ import annotations

import gzip
import random
import sys
import tempfile
import tracemalloc
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from irgraph.capture.kineto import read_kineto
from irgraph.capture.kineto.events.tree import build_tree
from irgraph.diagnostics import IrgraphError
from irgraph.replay.host_times import HostTimes
from irgraph.replay.replay import build_replayer
from tests.capture.kineto.builder import events, numbered, text

VALUES = [b"-1", b"0", b"null", b'"x"', b"1e400", b"NaN", b"[]", b"{}", b"true", b"9" * 25, b"0.5"]


def flip(data: bytearray, rng: random.Random) -> bytes:
    for _ in range(rng.choice((1, 1, 3, 20))):
        data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data)


def cut(data: bytearray, rng: random.Random) -> bytes:
    a, b = sorted(rng.randrange(len(data)) for _ in range(2))
    return bytes(data[:a] if rng.random() < 0.5 else data[:a] + data[b:])


def duplicate(data: bytearray, rng: random.Random) -> bytes:
    a = rng.randrange(len(data))
    b = min(len(data), a + rng.randrange(5000))
    return bytes(data[:b] + data[a:b] + data[b:])


def replace(data: bytearray, rng: random.Random) -> bytes:
    """Replace a number behind a colon by something else."""
    start = data.find(b": ", rng.randrange(len(data)))
    end = min((e for e in (data.find(c, start) for c in (b",", b"\n")) if e > 0), default=start)
    return bytes(data[: start + 2] + rng.choice(VALUES) + data[end:]) if start > 0 else bytes(data)


def packed(data: bytearray, rng: random.Random) -> bytes:
    """Damage the gzipped trace: flip bytes, or cut it off."""
    whole = bytearray(gzip.compress(bytes(data), mtime=0))
    return flip(whole, rng) if rng.random() < 0.5 else bytes(whole[: rng.randrange(20, len(whole))])


DAMAGES: tuple[Callable[[bytearray, random.Random], bytes], ...] = (
    flip, cut, duplicate, replace, packed
)  # fmt: skip


@dataclass
class Outcome:
    """What came of the tries: how many were refused, repaired, clean, or silently different."""

    counts: Counter[str] = field(default_factory=Counter)
    silent: list[int] = field(default_factory=list)
    failed: dict[int, str] = field(default_factory=dict)
    sound_peak: int = 0
    peak: int = 0


def numbers(data: bytes) -> bytes:
    """Return the text without its digits, to tell damage to a number alone."""
    return data.translate(None, b"0123456789")


def fuzz(count: int, first: int = 0) -> Outcome:
    """Damage the sound trace ``count`` times and read, build and replay each."""
    sound = text(numbered(events())).encode()
    outcome = Outcome()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        path.write_bytes(sound)
        clean = result(path)[0]
        tracemalloc.start()
        result(path)
        outcome.sound_peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        for seed in range(first, first + count):
            rng = random.Random(seed)
            data = rng.choice(DAMAGES)(bytearray(sound), rng)
            path.write_bytes(data)
            tracemalloc.start()
            try:
                found, repaired = result(path)
            except IrgraphError as error:
                outcome.counts[f"refused ({error.exit_code})"] += 1
                continue
            except Exception as error:
                outcome.failed[seed] = repr(error)
                continue
            finally:
                outcome.peak = max(outcome.peak, tracemalloc.get_traced_memory()[1])
                tracemalloc.stop()
            outcome.counts["repaired" if repaired else "clean"] += 1
            # one digit for another is damage that nobody could see
            if not repaired and found != clean and numbers(data) != numbers(sound):
                outcome.silent.append(seed)
    return outcome


def result(path: Path) -> tuple[list[float], bool]:
    """Return step times, measured and replayed, and whether the trace was repaired."""
    trace = read_kineto(path)
    tree = build_tree(trace)
    replayed = build_replayer(tree).replay_all(HostTimes())
    times = [t for r in replayed for t in (r.measured, round(r.simulated, 3))]
    return times, trace.health.repaired


def main(count: int) -> str:
    """Try that many and return what went wrong, nothing if all is well."""
    tried = fuzz(count)
    sys.stdout.write(
        f"{dict(tried.counts)}, peak {tried.peak / 1e6:.1f} MB "
        f"({tried.sound_peak / 1e6:.1f} MB undamaged)\n"
    )
    if tried.failed:
        return f"failed: {tried.failed}"
    if tried.peak > 2 * tried.sound_peak:
        return "more than twice the memory of the sound trace"
    return f"silently different: seeds {tried.silent[:20]}" if tried.silent else ""


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000) or 0)
