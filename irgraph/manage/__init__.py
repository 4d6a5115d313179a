"""Pipelines: watchers, reproducers, bisection, reduction, parameter spaces."""
