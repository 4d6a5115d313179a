"""ONNX models: their forward pass as torch would run it."""

from irgraph.capture.onnx.lower import lower_onnx

__all__ = ["lower_onnx"]
