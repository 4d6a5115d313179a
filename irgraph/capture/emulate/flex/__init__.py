"""FlexAttention on meta: traces of its score functions, and the op that replaces its kernel."""
