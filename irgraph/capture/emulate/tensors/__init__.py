"""Queries, types and parallel use of tensors on an emulated card."""
