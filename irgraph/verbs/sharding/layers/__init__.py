"""Column- and row-parallel linear layers: what a rank runs that has parts of their weights."""
