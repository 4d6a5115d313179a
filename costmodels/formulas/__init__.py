"""Kernel formulas that several families share, and the machine that they are stated for."""
