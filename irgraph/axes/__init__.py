"""Axes that must have one size: what follows where one axis of one tensor is resized.

``relations`` says how sizes at one op hang together, ``rules`` and ``views`` know that for the
ops of captured steps, ``probe`` asks torch's meta device for all others; ``spread`` follows a
change through a graph, ``layout`` lays the tensors out anew, and ``resized`` makes the graph.
"""
