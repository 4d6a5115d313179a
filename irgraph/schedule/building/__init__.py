"""Building of a step's tasks: from single charges, or from templates of repeated calls."""
