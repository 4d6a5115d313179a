"""Laws of kernels that were measured on an H100, where they differ from other cards."""
