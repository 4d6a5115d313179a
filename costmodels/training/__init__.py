"""Training with JAX: recipes, scores, experiments, the paper's search, device corrections."""
