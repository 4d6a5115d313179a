"""Live capture: a PyTorch step, run once and recorded."""

from irgraph.capture.live.loop import Capturing, capturing
from irgraph.capture.live.step import capture, capture_file

__all__ = ["Capturing", "capture", "capture_file", "capturing"]
