// Slices of time as columns of numbers, the lanes they lie on, and the part of the step in view.

// Return the columns of a section: microseconds, numbers of texts, and how deep each slice lies.
function decode(spec) {
  const given = spec.columns, count = given.start.length;
  const found = { count, texts: spec.texts, known: spec.known, tracks: spec.tracks,
    start: new Float64Array(count), end: new Float64Array(count), depth: new Uint16Array(count) };
  for (const name of ["track", "name", "kind", "facts", "critical"]) found[name] = Int32Array.from(given[name]);
  let at = 0, total = 0, open = [];
  for (let i = 0; i < count; i++) {
    const fresh = i === 0 || found.track[i] !== found.track[i - 1];
    if (fresh) { at = 0; open = []; }
    at += given.start[i];
    found.start[i] = at / 1000;
    found.end[i] = (at + given.length[i]) / 1000;
    while (open.length && open[open.length - 1] <= at) open.pop();
    found.depth[i] = open.length;
    open.push(at + given.length[i]);
    total = Math.max(total, found.end[i]);
  }
  found.total = total;
  found.hues = new Array(spec.texts.length);
  for (const kind of new Set(found.kind)) found.hues[kind] = hue(spec.texts[kind]);
  found.lanes = lanesOf(found);
  return found;
}

// Return a lane for each track and depth, with its slices in order of time.
function lanesOf(found) {
  const lanes = new Map();
  for (let i = 0; i < found.count; i++) {
    const key = found.track[i] * 65536 + found.depth[i];
    if (!lanes.has(key)) lanes.set(key, { track: found.track[i], depth: found.depth[i], items: [] });
    lanes.get(key).items.push(i);
  }
  const order = [...lanes.values()].sort((a, b) => a.track - b.track || a.depth - b.depth);
  for (const lane of order) lane.items = Int32Array.from(lane.items);
  return order;
}

// Return the position in a lane of the first slice that ends after a time.
function firstAfter(found, lane, time) {
  let low = 0, high = lane.items.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (found.end[lane.items[middle]] <= time) low = middle + 1;
    else high = middle;
  }
  return low;
}

// The facts of a slice, as pairs of label and text.
function factsOf(found, i) {
  const numbers = found.known[found.facts[i]] || [], pairs = [];
  for (let at = 0; at + 1 < numbers.length; at += 2) pairs.push([found.texts[numbers[at]], found.texts[numbers[at + 1]]]);
  return pairs;
}

function trackName(found, track) {
  return found.tracks[track].filter(Boolean).join(" ");
}

// The part of the step that all sections show.
const view = { from: 0, to: 1, total: 1, watchers: [], planned: false };

function include(total) {
  if (total <= view.total && view.known) return;
  view.total = view.known ? Math.max(view.total, total) : total || 1;
  view.known = true;
  view.from = 0;
  view.to = view.total;
}

function look(from, to) {
  const width = Math.min(Math.max(to - from, view.total * 1e-7, 0.005), view.total);
  const middle = (from + to) / 2;
  view.from = Math.min(Math.max(middle - width / 2, 0), view.total - width);
  view.to = view.from + width;
  changed();
}

function zoom(factor, at = (view.from + view.to) / 2) {
  look(at - (at - view.from) * factor, at + (view.to - at) * factor);
}

function pan(share) {
  const width = view.to - view.from;
  look(view.from + share * width, view.to + share * width);
}

function changed() {
  if (view.planned) return;
  view.planned = true;
  requestAnimationFrame(() => {
    view.planned = false;
    for (const watcher of view.watchers) watcher();
  });
}
