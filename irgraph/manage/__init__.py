"""What goes with pipelines: watchers, reproducers, bisection, reduction, spaces of parameters."""
