"""Kernels, steps and gains that were timed on a lent GPU, beside predictions."""
