"""Streams and events of a program that names ``cuda``, as marks among its calls.

Each use of one adds an empty range, such as ``irgraph.cuda#record 2 1``, to the recording;
``irgraph.capture.common.streams`` converts these marks to streams and events of the IR.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import count

from irgraph.capture.common.streams import MARK
from irgraph.capture.common.torch_object import Torch
from irgraph.capture.emulate.cuda_graphs import EmulatedGraph, GraphContext, refuse


def mark(*words: object) -> None:
    """Add a mark to the recording."""
    from torch.autograd.profiler import record_function

    with record_function(MARK + " ".join(map(str, words))):
        pass


def mark_current() -> None:
    """Mark the stream on which a recording starts, unless it is the default one."""
    import torch

    number = torch.cuda.current_stream().number
    if number:
        mark("on", number)


def _on_side_stream() -> bool:
    """Return whether the program has left the default stream of a real card."""
    import torch

    cuda = torch.cuda
    return bool(cuda.is_initialized() and cuda.current_stream() != cuda.default_stream())


class EmulatedStreams:
    """The streams of one capture, with the current one. Number 0 is the default one.

    Attributes:
        timed: whether the program measured a time between events.
    """

    def __init__(self) -> None:
        numbers = count()
        self.timed = False
        self.event_class = _event_class(self, numbers)
        self.stream_class = _stream_class(self, numbers)
        self.default = self.current = self.stream_class()
        if _on_side_stream():
            self.current = self.stream_class()

    def set_stream(self, stream: Torch) -> None:
        """Run the following calls on a stream."""
        if stream is not None:
            self.current = stream
            mark("on", stream.number)

    def current_stream(self, device: Torch = None) -> Torch:
        """Return the stream on which calls run."""
        return self.current

    def default_stream(self, device: Torch = None) -> Torch:
        """Return the first stream."""
        return self.default

    def synchronize(self, device: Torch = None) -> None:
        """Mark that the host waits for all streams."""
        mark("device")

    @contextlib.contextmanager
    def on_stream(self, stream: Torch) -> Iterator[None]:
        """Run the calls within the context on a stream."""
        with stream or contextlib.nullcontext():
            yield

    def answers(self) -> dict[tuple[Torch, str], Torch]:
        """Return replacements of torch's streams, events and graphs, by module and name."""
        import torch

        shared_answers = {
            "current_stream": self.current_stream,
            "set_stream": self.set_stream,
            "synchronize": self.synchronize,
        }
        cuda = {
            **shared_answers,
            "default_stream": self.default_stream,
            "stream": self.on_stream,
            "StreamContext": self.on_stream,
            "Stream": self.stream_class,
            "Event": self.event_class,
            "CUDAGraph": EmulatedGraph,
            "graph": GraphContext,
            "make_graphed_callables": refuse,
            "graph_pool_handle": lambda: (0, 0),
        }
        answers = {(torch.cuda, name): value for name, value in cuda.items()}
        answers |= {(torch.accelerator, name): value for name, value in shared_answers.items()}
        return answers | {
            (torch, "Stream"): self.stream_class,
            (torch, "Event"): self.event_class,
        }


def _event_class(owner: EmulatedStreams, numbers: Iterator[int]) -> Torch:
    class Event:
        """Replacement of ``torch.cuda.Event``."""

        def __init__(self, *_: object, **__: object) -> None:
            self.number = next(numbers)

        def record(self, stream: Torch = None) -> None:
            mark("record", self.number, (stream or owner.current).number)

        def wait(self, stream: Torch = None) -> None:
            mark("wait", self.number, (stream or owner.current).number)

        def synchronize(self) -> None:
            mark("event", self.number)

        def query(self) -> bool:
            return True

        def elapsed_time(self, _: Event) -> float:
            owner.timed = True
            return 1.0

    return Event


def _stream_class(owner: EmulatedStreams, numbers: Iterator[int]) -> Torch:
    class Stream:
        """Replacement of ``torch.cuda.Stream``."""

        device_index, device_type = 0, 1

        def __init__(self, *_: object, **__: object) -> None:
            self.number = self.stream_id = self.cuda_stream = next(numbers)
            self._outer: list[Stream] = []

        def wait_event(self, event: Torch) -> None:
            mark("wait", event.number, self.number)

        def wait_stream(self, stream: Stream) -> None:
            self.wait_event(stream.record_event())

        def record_event(self, event: Torch = None) -> Torch:
            event = event or owner.event_class()
            event.record(self)
            return event

        def synchronize(self) -> None:
            mark("stream", self.number)

        def query(self) -> bool:
            return True

        def is_capturing(self) -> bool:
            return False

        def __enter__(self) -> Stream:
            self._outer.append(owner.current)
            owner.set_stream(self)
            return self

        def __exit__(self, *_: object) -> None:
            owner.set_stream(self._outer.pop())

    return Stream
