// A section of slices: its canvas, tools, legend, and the facts of the slice that is chosen.
const KEYS = "Drag to move, Ctrl + wheel to zoom, Shift + drag to zoom into a range, click for facts. "
  + "Keys: arrows choose, + and − zoom, Shift + arrows move, Enter zooms to the slice, 0 shows all.";

const HOST_KINDS = new Set(["T1", "T2", "T3", "T4", "T5", "latency", "gap", "earlier", "sync", "loader", "start", "arrival", "event"]);

function slicesNode(spec) {
  const found = decode(spec);
  if (!found.count) return make("p", { class: "quiet", text: "nothing" });
  include(found.total);
  const state = { tall: spec.tall, height: arrange(found, spec.tall), chosen: -1, hits: null };
  const canvas = make("canvas", { tabindex: "0", role: "application", "aria-label": spec.title, "aria-describedby": spec.id + "-keys" });
  canvas.style.height = state.height + "px";
  const facts = make("div", { class: "chosen", hidden: true });
  const part = { found, state, canvas, facts, redraw: () => paint(canvas, found, state) };
  view.watchers.push(part.redraw);
  themed.push(part.redraw);
  new ResizeObserver(part.redraw).observe(canvas);
  const frame = make("div", { class: "frame" }, canvas, tipNode(part));
  steer(part);
  return make("div", { class: "slices" }, toolsNode(spec, part), make("div", { class: "lanes" }, frame), legendNode(found),
    facts, make("p", { class: spec.tall ? "unseen" : "hint", id: spec.id + "-keys", text: KEYS }));
}

function toolsNode(spec, part) {
  const button = (text, label, click) => make("button", { type: "button", class: "plain", text, "aria-label": label, click });
  return make("div", { class: "tools" }, searchNode(spec, part),
    button("−", "Zoom out", () => zoom(1.6)), button("+", "Zoom in", () => zoom(1 / 1.6)),
    button("Whole step", "Show the whole step", () => look(0, view.total)));
}

// The kinds with most time, of two models one after the other; a slice within one of its kind does not count again.
function legendNode(found) {
  const groups = [...new Set(found.tracks.map((track) => track[0]))];
  const two = groups.length === 2 && !groups.some((group) => /^(rank|trace) \d/.test(group));
  const sums = new Map(), causes = new Map(), around = [];
  for (let i = 0; i < found.count; i++) {
    const kind = found.texts[found.kind[i]], depth = found.depth[i];
    around.length = depth;
    const within = around.includes(kind);
    around.push(kind);
    if (!sums.has(kind)) {
      sums.set(kind, [0, 0]);
      const cause = factsOf(found, i).find(([label]) => label === "cause");
      if (cause && HOST_KINDS.has(kind)) causes.set(kind, cause[1]);
    }
    if (!within) sums.get(kind)[two ? groups.indexOf(found.tracks[found.track[i]][0]) : 0] += found.end[i] - found.start[i];
  }
  const most = [...sums].sort((a, b) => b[1][0] + b[1][1] - a[1][0] - a[1][1]).slice(0, 14);
  const list = make("ul", { class: "legend" }, most.map(([kind, times]) => {
    const key = make("span", { class: "key" });
    key.style.background = hue(kind);
    const text = times.slice(0, two ? 2 : 1).map((time) => timeText(time, 3)).join(" → ");
    return make("li", { title: causes.get(kind) }, key, make("span", { text: `${kind} ${text}` }));
  }));
  const rows = [...causes].map(([kind, text]) => make("li", {}, make("b", { text: kind }), make("span", { text: ": " + text })));
  if (!rows.length) return list;
  return make("div", {}, list, make("details", { class: "hint" }, make("summary", { text: "What T1 to T5 and the like are" }), make("ul", {}, rows)));
}

function choose(part, i, spoken = false) {
  const { found, state, facts } = part;
  state.chosen = i;
  part.redraw();
  facts.hidden = i < 0;
  if (i < 0) return;
  const name = found.texts[found.name[i]];
  const rows = [["time", `${timeText(found.end[i] - found.start[i])}, from ${timeText(found.start[i], 6)} on`],
    ["on", trackName(found, found.track[i]) + (found.critical[i] && !state.tall ? ", on the critical path" : "")], ...factsOf(found, i)];
  facts.replaceChildren(make("h3", { text: name }), make("table", { class: "facts" }, make("tbody", {},
    rows.map(([label, text]) => make("tr", {}, make("th", { scope: "row", text: label }), make("td", { class: "name", text }))))));
  if (spoken) announce(`${name}, ${rows[0][1]}, ${rows[1][1]}`);
}

// What the pointer is over, beside it.
function tipNode(part) {
  part.tip = make("div", { class: "tip", hidden: true });
  return part.tip;
}

function tell(part, i, x, y) {
  const { found, tip, canvas } = part;
  tip.hidden = i < 0;
  if (i < 0) return;
  tip.textContent = `${shown(found.texts[found.name[i]])} · ${timeText(found.end[i] - found.start[i])}`;
  const right = x > canvas.clientWidth / 2;
  tip.style.left = right ? "auto" : x + 14 + "px";
  tip.style.right = right ? canvas.clientWidth - x + 8 + "px" : "auto";
  tip.style.top = y + 14 + "px";
}

function reveal(part, i) {
  const { found, canvas } = part;
  const width = view.to - view.from, begin = found.start[i], end = found.end[i];
  if (begin >= view.from && end <= view.to && end - begin > width / 400) return;
  const wide = Math.max((end - begin) * 12, Math.min(width, view.total / 40));
  look((begin + end) / 2 - wide / 2, (begin + end) / 2 + wide / 2);
  const lane = laneOf(part, i);
  const frame = canvas.closest(".lanes");
  if (lane.y < frame.scrollTop || lane.y > frame.scrollTop + frame.clientHeight - 30) frame.scrollTop = lane.y - frame.clientHeight / 2;
}

function laneOf(part, i) {
  const { found } = part;
  return found.lanes.find((lane) => lane.track === found.track[i] && lane.depth === found.depth[i]);
}
