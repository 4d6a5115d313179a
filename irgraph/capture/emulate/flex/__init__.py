"""FlexAttention on meta: its functions spelled out, and the op that stands for its kernel."""
