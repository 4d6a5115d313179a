"""What an op computes and moves: floating-point operations and bytes."""
