"""The book of operators: what each op means is declared once, in a file of ``kinds``.

From a declaration follow size constraints, shapes, FLOP, strides of views and placements.
"""
