"""Forward ops and their backward: what autograd makes of some ops, and where a graph has it."""
