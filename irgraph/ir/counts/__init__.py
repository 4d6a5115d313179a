"""Work of an op: its floating-point operations and its bytes of traffic."""
