"""Code that front ends share: recorded calls, the identity of tensors, lowering to a graph."""
