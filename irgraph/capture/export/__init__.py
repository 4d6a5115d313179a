"""Programs of torch.export: their forward pass as torch would run it."""

from irgraph.capture.export.program import lower_export

__all__ = ["lower_export"]
