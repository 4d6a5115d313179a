"""Column- and row-parallel linear layers: the model of a rank with parts of their weights."""
