"""Size constraints between axes: the sizes that change if one axis of a tensor is resized.

``relations`` are the constraints of one op. ``rules`` and ``views`` provide them for the ops of
captured steps; ``probe`` queries torch's meta device about all others. ``propagation`` carries a
change through a graph, ``layout`` computes strides and offsets, ``resized`` builds the graph.
"""
