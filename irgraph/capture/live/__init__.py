"""Live capture: a PyTorch step, run once and recorded."""

from irgraph.capture.live.step import capture, capture_file

__all__ = ["capture", "capture_file"]
