"""Size constraints between axes: the sizes that change if one axis of a tensor is resized.

``relations`` are the constraints of one op. ``constraints`` derives them from the book of operators
(``irgraph.ops``); ``probe`` queries torch's meta device about all others. ``propagation`` carries a
change through a graph, ``layout`` computes strides and offsets, ``growth`` builds the graph.
"""
