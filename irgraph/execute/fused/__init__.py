"""Ops that a CUDA device runs as one kernel, in plain torch on the CPU."""
