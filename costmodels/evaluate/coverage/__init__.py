"""Coverage of measured times by the intervals of kernels."""
