"""The typed IR: tensors, operations, graphs, and properties derived from them."""
