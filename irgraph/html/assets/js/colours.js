// Colours of kinds of work: the same kind has the same colour wherever it is drawn.
const HUES = [
  "#6fa8dc", "#f0a35e", "#8cc57a", "#e58e8e", "#b59bdb", "#c9a27e", "#e39ac9", "#a9b665",
  "#6cc5c1", "#d9c34a", "#8fa3e8", "#d98c5f", "#77b894", "#cf94b8", "#9fb8c9",
];
const FIXED = {
  T1: "#d6cfa8", T2: "#cdb98b", T3: "#e0cb9b", T4: "#c9a27e", T5: "#d8c3a5", sync: "#d9a7a0",
  waits: "#d9d9d9", latency: "#bfc5cc", start: "#e2e2e2", arrival: "#e2e2e2", event: "#e2e2e2", gap: "#cfd4da", operation: "#b7c9dd", call: "#c5d3e2",
  forward: "#b7cfe6", backward: "#e3c4b4", optimizer: "#c4dcc0", loader: "#cdc6dd",
  gemm: "#6fa8dc", elementwise: "#8cc57a", embedding: "#f0a35e", copy: "#d9c34a",
  memcpy: "#d9c34a", memset: "#a9b665", fill: "#a9b665", reduce: "#b59bdb", convolution: "#8fa3e8",
  batch_norm: "#6cc5c1", collective: "#e39ac9", optimizer_step: "#77b894", index: "#e58e8e",
  measured: "#5a9e6f", scaled: "#8cc57a", learned: "#6fa8dc", heuristic: "#f0a35e", none: "#e07070",
  parameters: "#9fb8c9", state: "#b59bdb", gradients: "#f0a35e", activations: "#6fa8dc",
  inputs: "#a9b665", conv: "#8fa3e8", normalization: "#6cc5c1", norm: "#6cc5c1", reduction: "#b59bdb", indexing: "#e58e8e",
  communication: "#e39ac9", attention: "#d98c5f", softmax: "#cf94b8", loss: "#c9a27e", pooling: "#77b894", pool: "#77b894",
  layout: "#9fb8c9", transpose: "#9fb8c9", concat: "#d2ab6a", sort: "#a8a0d8", "sort and scan": "#a8a0d8", random: "#b8c48a",
};
const INK = "#1b1f24"; // text on any of these
const assigned = new Map();

function hue(kind) {
  const name = kind.replace(/^kernel /, "");
  if (Object.hasOwn(FIXED, name)) return FIXED[name];
  if (!assigned.has(name)) assigned.set(name, HUES[(assigned.size * 4) % HUES.length]);
  return assigned.get(name);
}
