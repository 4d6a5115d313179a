"""Laws of kernels measured on an H100 that differ from other cards' laws."""
