"""CUDA graphs of a program: the calls made during a graph's capture run again at each replay."""

from __future__ import annotations

import contextlib
from contextvars import ContextVar

from irgraph.capture.common.streams import GRAPH
from irgraph.capture.common.torch_object import Torch

NO_CALLABLES = (
    "make_graphed_callables is not captured: it takes autograd apart; capture the step without it, "
    "or put the whole step in a torch.cuda.graph"
)

captured_results: ContextVar[Torch] = ContextVar("captured_results", default=None)
"""A replayed call's operator and its results at the graph's capture, whose memory it reuses."""


class GraphError(NotImplementedError):
    """Raised if the step uses CUDA graphs in a way that no model can represent."""


class EmulatedGraph:
    """Replacement of ``torch.cuda.CUDAGraph``."""

    def __init__(self, *_: object, **__: object) -> None:
        self._calls: list[tuple[Torch, Torch, Torch, Torch]] = []
        self._open = contextlib.ExitStack()

    def capture_begin(self, *_: object, **__: object) -> None:
        """Start to record calls."""
        from torch.utils._python_dispatch import TorchDispatchMode

        calls = self._calls

        class CallRecorder(TorchDispatchMode):  # type: ignore[misc]
            """Stores each call with its operands and results, which stay alive."""

            def __torch_dispatch__(
                self, func: Torch, types: Torch, args: Torch = (), kwargs: Torch = None
            ) -> Torch:
                result = func(*args, **(kwargs or {}))
                if func.namespace != "profiler":
                    calls.append((func, *map(_alias, (args, kwargs or {}, result))))
                return result

        self._open.enter_context(CallRecorder())

    def capture_end(self) -> None:
        """Stop recording."""
        self._open.close()

    def replay(self) -> None:
        """Run the recorded calls again, in the memory of their capture."""
        import torch

        label = torch.autograd.profiler.record_function(GRAPH)
        with label, torch.no_grad():
            for func, args, kwargs, result in self._calls:
                token = captured_results.set((func, result))
                try:
                    func(*args, **kwargs)
                finally:
                    captured_results.reset(token)

    def pool(self) -> tuple[int, int]:
        """Return the id of the only memory pool."""
        return (0, 0)

    def reset(self) -> None:
        """Forget the calls."""
        self._calls.clear()


def _alias(value: Torch) -> Torch:
    """Return a value with aliases of its tensors, except for parameters.

    Aliases leave the original tensors unreferenced: autograd copies gradients that are referenced
    elsewhere.
    """
    import torch
    from torch.utils._pytree import tree_map_only

    def alias(tensor: Torch) -> Torch:
        return tensor if tensor.requires_grad and tensor.is_leaf else tensor.detach()

    return tree_map_only(torch.Tensor, alias, value)


class GraphContext:
    """Replacement of ``torch.cuda.graph``: ``with torch.cuda.graph(g): ...``."""

    def __init__(self, graph: EmulatedGraph, *_: object, **__: object) -> None:
        self._graph = graph

    def __enter__(self) -> None:
        """Start the capture."""
        self._graph.capture_begin()

    def __exit__(self, *_: object) -> None:
        """End the capture."""
        self._graph.capture_end()


def refuse(*_: object, **__: object) -> None:
    """Raise ``GraphError``."""
    raise GraphError(NO_CALLABLES)
