"""Copies of a trace as people's traces are damaged, each by a change of its events or its text."""

from __future__ import annotations

import gzip
import json
import random
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.analyze import raw

Events = list[dict[str, Any]]
Change = Callable[[Events], Events]
KERNELS = {"kernel", "Kernel"}


def is_kernel(event: dict[str, Any]) -> bool:
    return event.get("cat") in KERNELS


def is_work(event: dict[str, Any]) -> bool:
    return str(event.get("cat", "")).lower() in raw.DEVICE


def is_call(event: dict[str, Any]) -> bool:
    return str(event.get("cat", "")).lower() in {"cuda_runtime", "cuda_driver", "runtime"}


def is_operator(event: dict[str, Any]) -> bool:
    return str(event.get("cat", "")).lower() in {"cpu_op", "operator"}


def is_mark(event: dict[str, Any]) -> bool:
    return str(event.get("name", "")).startswith("ProfilerStep")


Test = Callable[[dict[str, Any]], bool]


def without(test: Test) -> Change:
    return lambda events: [e for e in events if not test(e)]


def without_every(count: int, test: Test, share: slice = slice(None)) -> Change:
    """Return a change that drops every ``count``-th of some events within a share of them."""

    def change(events: Events) -> Events:
        chosen = [id(e) for e in events if test(e)][share]
        gone = set(chosen[::count])
        return [e for e in events if id(e) not in gone]

    return change


def late_half(test: Test) -> Change:
    def change(events: Events) -> Events:
        chosen = [id(e) for e in events if test(e)]
        gone = set(chosen[len(chosen) // 2 :])
        return [e for e in events if id(e) not in gone]

    return change


def each(test: Test, change: Callable[[dict[str, Any]], Any], count: int = 1) -> Change:
    """Return a change of every ``count``-th of some events."""

    def apply(events: Events) -> Events:
        for event in [e for e in events if test(e)][::count]:
            change(event)
        return events

    return apply


def timed(event: dict[str, Any]) -> bool:
    return event.get("ph") == "X"


def anything(event: dict[str, Any]) -> bool:
    return True


def later(microseconds: float) -> Callable[[dict[str, Any]], Any]:
    return lambda e: e.update(ts=float(e["ts"]) + microseconds)


def no_argument(name: str) -> Callable[[dict[str, Any]], Any]:
    return lambda e: e.get("args", {}).pop(name, None)


def shuffled(events: Events) -> Events:
    random.Random(0).shuffle(events)
    return events


def twice(test: Test) -> Change:
    return lambda events: [*events, *({**e} for e in events if test(e))]


def in_pairs(events: Events) -> Events:
    """Write each host event as its begin and its end."""
    found: Events = []
    for e in events:
        if timed(e) and is_operator(e):
            begin = {k: v for k, v in e.items() if k != "dur"} | {"ph": "B"}
            end = {k: e[k] for k in ("pid", "tid", "name", "cat")} | {"ph": "E"}
            found += [begin, {**end, "ts": e["ts"] + e["dur"]}]
        else:
            found.append(e)
    return found


def as_graphs(events: Events) -> Events:
    """Let the first launch of each mark, or of all, start all kernels that the others started."""
    marks = sorted(e["ts"] for e in events if is_mark(e) and timed(e))
    started = {
        e["args"]["correlation"]: e
        for e in events
        if is_call(e) and "aunch" in e["name"] and "correlation" in e.get("args", {})
    }
    work: dict[int, Events] = defaultdict(list)
    for kernel in filter(is_work, events):
        work[kernel.get("args", {}).get("correlation")].append(kernel)
    first: dict[int, dict[str, Any]] = {}
    gone: set[int] = set()
    for number, call in sorted(started.items(), key=lambda pair: pair[1]["ts"]):
        place = sum(call["ts"] >= mark for mark in marks)
        graph = first.setdefault(place, call)
        graph["name"] = "cudaGraphLaunch"
        if graph is not call:
            gone.add(id(call))
        for kernel in work[number]:
            kernel["args"]["correlation"] = graph["args"]["correlation"]
    return [e for e in events if id(e) not in gone]


def stretched(events: Events) -> Events:
    """Let every fifth operator run into the next one, as clocks of several threads do."""
    chosen = [e for e in events if is_operator(e) and timed(e) and e["dur"] > 20]
    for event in chosen[::5]:
        event["dur"] *= 1.5
    return events


CHANGES: dict[str, Change] = {
    "as it is": lambda events: events,
    "no marks": without(is_mark),
    "first mark gone": without_every(10**6, is_mark),
    "late kernels gone": late_half(is_kernel),
    "every tenth kernel gone": without_every(10, is_kernel),
    "no device work": without(is_work),
    "no runtime calls": without(is_call),
    "late runtime calls gone": late_half(is_call),
    "every tenth runtime call gone": without_every(10, is_call),
    "no operators": without(is_operator),
    "late operators gone": late_half(is_operator),
    "no correlations of work": each(is_work, no_argument("correlation")),
    "no correlations of calls": each(is_call, no_argument("correlation")),
    "correlations all 0": each(is_work, lambda e: e.setdefault("args", {}).update(correlation=0)),
    "some correlations shared": each(
        is_work, lambda e: e.setdefault("args", {}).update(correlation=1), 20
    ),
    "no arguments": each(anything, lambda e: e.pop("args", None)),
    "no shapes": each(anything, no_argument("Input Dims")),
    "everything twice": twice(anything),
    "kernels twice": twice(is_kernel),
    "work 5 ms late": each(is_work, later(5000.0)),
    "work 5 ms early": each(is_work, later(-5000.0)),
    "some work far off": each(is_work, later(1e12), 50),
    "times in nanoseconds": each(
        timed, lambda e: e.update(ts=int(e["ts"] * 1000), dur=int(e["dur"] * 1000))
    ),
    "times as text": each(timed, lambda e: e.update(ts=str(e["ts"]), dur=str(e["dur"]))),
    "times with decimals": each(timed, later(0.125)),
    "lengths below zero": each(is_work, lambda e: e.update(dur=-e["dur"]), 10),
    "lengths of zero": each(is_work, lambda e: e.update(dur=0), 10),
    "lengths missing": each(is_work, lambda e: e.pop("dur", None), 10),
    "one thread": each(lambda e: timed(e) and not is_work(e), lambda e: e.update(tid=1, pid=1)),
    "operators overlap": stretched,
    "one stream": each(is_work, lambda e: e.get("args", {}).update(stream=7)),
    "shuffled": shuffled,
    "unknown categories": each(is_work, lambda e: e.update(cat="novel")),
    "no categories": each(timed, lambda e: e.pop("cat", None)),
    "begins and ends": in_pairs,
    "graphs": as_graphs,
}
"""What is done to the events of a trace, by a name for it."""


def cut(share: float) -> Callable[[bytes], bytes]:
    return lambda data: data[: int(share * len(data))]


TEXTS: dict[str, Callable[[bytes], bytes]] = {
    "cut at a third": cut(0.35),
    "cut at two thirds": cut(0.66),
    "cut near the end": cut(0.97),
    "packed and cut": lambda data: cut(0.8)(gzip.compress(data, 6, mtime=0)),
    "bytes in between": lambda data: data.replace(b"aten::", b"aten\x01\xff::", 40),
}
"""What is done to the text of a trace, by a name for it."""

ALL = (*CHANGES, *TEXTS)


def damaged(path: Path, name: str, folder: Path) -> Path:
    """Write a damaged copy of a trace into a folder; return its path."""
    data = gzip.decompress(path.read_bytes())
    copy = folder / "trace.json"
    if name in TEXTS:
        copy.write_bytes(TEXTS[name](data))
        return copy
    trace = json.loads(data.decode("utf-8", "replace"), strict=False)
    events = trace["traceEvents"] if isinstance(trace, dict) else trace
    header = trace if isinstance(trace, dict) else {}
    copy.write_text(json.dumps({**header, "traceEvents": CHANGES[name](events)}))
    return copy
