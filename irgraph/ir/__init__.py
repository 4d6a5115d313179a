"""The typed IR: tensors, operations, graphs, and what can be derived from them."""
