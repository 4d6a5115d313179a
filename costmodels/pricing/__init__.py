"""From a graph to the kernels of its ops: by measured times, learned models or formulas."""
