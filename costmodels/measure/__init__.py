"""Measuring on any torch device: timed sweeps of microbenchmarks, and device sheets."""
