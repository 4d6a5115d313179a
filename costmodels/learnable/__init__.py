"""What a learned family declares with: measured columns, device properties, inputs and launches."""
