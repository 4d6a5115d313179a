"""Search spaces over variants of a step, their figures, and studies of them with Optuna.

Optuna, the extra ``tune``, is imported when a study runs, not with this package.
"""
