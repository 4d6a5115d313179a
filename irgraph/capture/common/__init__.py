"""What front ends share: recorded calls, the identity of tensors, and the way to a graph."""
