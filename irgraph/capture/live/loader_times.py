"""Times in which a program's data loaders make batches, measured after its capture."""

from __future__ import annotations

import contextlib
import copy
import random
import sys
from collections.abc import Container, Iterator
from statistics import median
from time import perf_counter

from msgspec.structs import replace

from irgraph.capture.common.result import Capture
from irgraph.capture.common.torch_object import Torch
from irgraph.capture.live.target import error_text
from irgraph.ir.loading import (
    TIME_SOURCE,
    UNTIMED,
    Loading,
    batch_loads,
    with_loading,
    with_loading_times,
)

MAX_BATCHES = 5
"""Maximum number of batches that are timed, after one that warms up."""

MAX_SECONDS = 2.0
"""Time after which no further batch is made."""

MICROSECONDS = 1e6
"""Microseconds in a second."""

NOT_REPEATED = "a loader that is iterated again after the loop fails: {}"

SOURCE = "measured on the CPU of the capture"
"""Source of times that the user did not specify."""


class LoaderTimes:
    """The loaders of a program, by name.

    Attributes:
        loading: the loading that the user specified, ``None`` to measure it.
    """

    def __init__(self, loading: Loading | None) -> None:
        self.loading = loading
        self._loaders: list[Torch] = []
        self._loader_by_iterator: dict[int, Torch] = {}
        self._times: dict[str, float | None] = {}
        self._failures: list[str] = []

    def add(self, iterator: Torch, loader: Torch) -> None:
        """Store the loader whose batches an iterator yields."""
        self._loader_by_iterator[id(iterator)] = loader

    def name(self, source: Torch) -> str:
        """Return the name of a loader, or of an iterator's loader; a new one if there is none."""
        # an iterator is iterated once, and a later object may have its id
        loader = self._loader_by_iterator.pop(id(source), source)
        numbers = [number for number, other in enumerate(self._loaders) if other is loader]
        if not numbers:
            self._loaders.append(loader)
        return f"loader {numbers[0] if numbers else len(self._loaders) - 1}"

    def apply(self, captured: Capture) -> Capture:
        """Return a capture whose batches take the specified or measured times to load."""
        requests = batch_loads(captured.graph)
        if self.loading is not None and not requests:
            return replace(captured, graph=with_loading(captured.graph, self.loading))
        loading_by_name = self._measured({op.origin for op in requests})
        graph = with_loading_times(captured.graph, loading_by_name)
        notes = [UNTIMED, *self._failures] if len(batch_loads(graph)) < len(requests) else []
        if self.loading is None and loading_by_name:
            graph = replace(graph, settings={**graph.settings, TIME_SOURCE: SOURCE})
            notes += [_time_note(loading) for loading in loading_by_name.values()]
        return replace(captured, graph=graph, notes=(*captured.notes, *notes))

    def _measured(self, names: Container[str]) -> dict[str, Loading]:
        """Return the loading of loaders by name; those whose batches cannot be timed are absent."""
        loading_by_name = {}
        for loader in self._loaders:
            if self.name(loader) not in names:
                continue
            workers = getattr(loader, "num_workers", 0)
            time = self._time(loader) if self.loading is None else self.loading.time
            specified = self.loading.workers if self.loading is not None else None
            if time is not None:
                count = workers if specified is None else specified
                loading_by_name[self.name(loader)] = Loading(time, count)
        return loading_by_name

    def _time(self, loader: Torch) -> float | None:
        """Return the measured time of a loader's batch, which is measured once."""
        name = self.name(loader)
        if name not in self._times:
            try:
                self._times[name] = measured_time(loader)
            except Exception as error:  # the program's code may fail outside of its loop
                self._times[name] = None
                self._failures.append(NOT_REPEATED.format(error_text(error)))
        return self._times[name]


def _time_note(loading: Loading) -> str:
    makers = (
        f"each of the loader's workers ({loading.workers})" if loading.workers else "the loader"
    )
    time = f"{loading.time / 1e3:.2f} ms"
    return f"{makers} makes a batch in {time} on this CPU: --loader specifies another time"


def measured_time(loader: Torch) -> float | None:
    """Return the microseconds in which this process makes a batch, ``None`` if there is none.

    The loader is iterated again from its beginning, without workers. Raises what the loader raises.
    """
    from torch.utils.data import DataLoader

    if not isinstance(loader, DataLoader):
        return None
    times: list[float] = []
    started = perf_counter()
    with _preserved_random_state(), _threads_of(loader):
        before = perf_counter()
        for _ in DataLoader.__iter__(_without_workers(loader)):
            times.append(perf_counter() - before)
            if len(times) > MAX_BATCHES or perf_counter() - started > MAX_SECONDS:
                break
            before = perf_counter()
    # the first batch also opens files and fills caches
    return median(times[1:] or times) * MICROSECONDS if times else None


def _without_workers(loader: Torch) -> Torch:
    """Return a copy of a loader that makes batches in this process."""
    single = copy.copy(loader)
    options = {"num_workers": 0, "prefetch_factor": None, "timeout": 0, "pin_memory": False}
    # a loader refuses some of these once it exists
    for name, value in (options | {"persistent_workers": False, "_iterator": None}).items():
        object.__setattr__(single, name, value)
    return single


@contextlib.contextmanager
def _threads_of(loader: Torch) -> Iterator[None]:
    """Use as many threads of torch as the loader's processes do."""
    import torch

    count = torch.get_num_threads()
    torch.set_num_threads(1 if loader.num_workers else count)
    try:
        yield
    finally:
        torch.set_num_threads(count)


@contextlib.contextmanager
def _preserved_random_state() -> Iterator[None]:
    """Restore the random states of Python, NumPy and torch at the end."""
    import torch

    state = random.getstate()
    numpy = sys.modules.get("numpy")
    numpy_state = numpy.random.get_state() if numpy is not None else None
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(state)
        if numpy is not None:
            numpy.random.set_state(numpy_state)
