"""Front ends: everything that turns a program or a recording of one into a graph."""
