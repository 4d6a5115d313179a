"""Ops that are one kernel on a CUDA device, in plain torch on the CPU."""
