"""Emulation of an accelerator, so that a capture shows its calls."""
