"""Templates: the ops that a statement adds, and the checks that they preserve the step."""
