"""Search for a layout of a step over ranks: samples, linear layers and parameters."""
