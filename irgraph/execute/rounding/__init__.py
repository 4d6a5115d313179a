"""Effect of roundings on results, by runs with perturbed values."""
