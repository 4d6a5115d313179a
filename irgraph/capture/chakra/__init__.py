"""Execution traces in the Chakra schema of MLCommons."""

from irgraph.capture.chakra.lower import lower_chakra

__all__ = ["lower_chakra"]
