"""Laws of kernels by the thread blocks that torch launches, and by the work of each block."""
