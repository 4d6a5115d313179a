"""PyTorch execution traces of any schema version."""

from irgraph.capture.execution_trace.lower import lower_execution_trace
from irgraph.capture.execution_trace.reader import (
    Trace,
    decode_execution_trace,
    read_execution_trace,
)

__all__ = ["Trace", "decode_execution_trace", "lower_execution_trace", "read_execution_trace"]
