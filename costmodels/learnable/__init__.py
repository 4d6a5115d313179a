"""Parts of a learned family's declaration: measurements, device properties, inputs, launches."""
