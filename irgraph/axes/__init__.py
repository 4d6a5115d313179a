"""Size constraints between axes: what must change when one axis of one tensor is resized.

``relations`` are the constraints of one op. ``rules`` and ``views`` know them for the ops of
captured steps; ``probe`` asks torch's meta device about all others. ``propagation`` carries a
change through a graph, ``layout`` computes strides and offsets, ``resized`` builds the graph.
"""
