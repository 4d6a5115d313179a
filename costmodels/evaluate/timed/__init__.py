"""Kernels, steps and gains timed on a rented GPU, compared with predictions."""
