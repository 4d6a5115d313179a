"""Whole programs that others timed, and gains of changing them."""
