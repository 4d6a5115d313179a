"""Forward ops and their backward: derivation by autograd, search in a graph, and replacement."""
