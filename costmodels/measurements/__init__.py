"""Measurements of our own: kernels of sweeps and steps, by the device that they were made on."""
