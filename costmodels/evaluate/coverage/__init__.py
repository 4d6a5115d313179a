"""How often intervals of kernels hold what was measured."""
