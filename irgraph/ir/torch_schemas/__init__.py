"""torch's own schema strings, the script that generates them, and meta kernels for torch."""
