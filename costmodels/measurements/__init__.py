"""irgraph's own measurements: kernels of sweeps, and steps, by the device that they ran on."""
