// Charts drawn by uPlot: memory over time, and the roofline.
function chartNode(build, note) {
  const place = make("div", { class: "chart" });
  const node = make("div", { class: "chartbox" }, place, note ? make("p", { class: "hint", text: note }) : null);
  let plot = null;
  const size = () => ({ width: Math.max(place.clientWidth, 320), height: 300 });
  new ResizeObserver(() => {
    if (!place.clientWidth) return;
    if (!plot) plot = build(place, size());
    else if (plot.width !== size().width) plot.setSize(size());
  }).observe(place);
  themed.push(() => plot && plot.redraw(false));
  return node;
}

function axis(label, values) {
  const line = { stroke: () => colour("line"), width: 1 };
  return { label, stroke: () => colour("quiet"), grid: line, ticks: line, size: label ? 34 : 84, font: "11px system-ui",
    labelFont: "12px system-ui", values: values && ((_, splits) => splits.map((value) => (value === null ? "" : values(value)))) };
}

const POWERS = Array.from({ length: 60 }, (_, at) => 2 ** at);

// Amounts that lie on each other, the steadiest at the bottom.
function areasNode(spec) {
  const sums = [], totals = new Array(spec.at.length).fill(0);
  for (const [, values] of spec.layers) {
    values.forEach((value, at) => { totals[at] += value; });
    sums.push([...totals]);
  }
  const peak = Math.max(...totals), near = spec.limit && spec.limit < 1.4 * peak;
  const series = spec.layers.map(([label], at) => ({
    label, stroke: hue(label), fill: hue(label), width: 1, paths: uPlot.paths.stepped({ align: 1 }), points: { show: false },
    value: (_, __, ___, index) => (index === null || index === undefined ? "–" : bytesText(spec.layers[at][1][index])),
  })).reverse();
  const rows = [spec.at, ...sums.reverse()];
  if (near) {
    series.push({ label: "memory of the device", stroke: () => colour("bad"), dash: [6, 4], width: 2, points: { show: false }, value: () => bytesText(spec.limit) });
    rows.push(spec.at.map(() => spec.limit));
  }
  const time = { label: "time", value: (_, value) => (value === null ? "–" : timeText(value)) };
  const build = (place, size) => new uPlot({ ...size, scales: { x: { time: false }, y: { range: (_, __, most) => [0, most * 1.05] } },
    axes: [axis("time", (value) => timeText(value, 3)), { ...axis("", bytesText), incrs: POWERS }], series: [time, ...series] }, rows, place);
  const limit = spec.limit ? `; the device has ${bytesText(spec.limit)}` : "";
  return chartNode(build, `Peak ${bytesText(peak)}${limit}.`);
}

// Operations a second over operations a byte, both in powers of ten.
function roofNode(spec) {
  const points = spec.points.map((point) => ({ ...point, x: point.flop / point.bytes, y: point.flop / point.us / 1e3 }));
  const top = Math.max(...spec.peaks.map(([, peak]) => peak));
  const ridge = top / spec.bandwidth, inside = points.map((point) => point.x);
  const low = Math.min(...inside, ridge / 8), high = Math.max(...inside, ridge * 8);
  const grid = Array.from({ length: 121 }, (_, at) => low * (high / low) ** (at / 120));
  const xs = [...new Set([...grid, ...inside])].sort((a, b) => a - b), index = new Map(xs.map((x, at) => [x, at]));
  const groups = [...new Set(points.map((point) => point.group))];
  const dots = groups.map((group) => {
    const row = new Array(xs.length).fill(null);
    for (const point of points) if (point.group === group) row[index.get(point.x)] = Math.max(row[index.get(point.x)] || 0, point.y);
    return row;
  });
  const roofs = spec.peaks.map(([, peak]) => xs.map((x) => Math.min(peak, x * spec.bandwidth)));
  const series = [{ label: "operations a byte" },
    ...spec.peaks.map(([label, peak]) => ({ label: `roof ${label}: ${rate(peak)}`, stroke: () => colour("quiet"), width: 1.5, points: { show: false } })),
    ...groups.map((group) => ({ label: group, stroke: hue(group), fill: hue(group), paths: () => null, points: { show: true, size: 9, fill: hue(group), stroke: () => colour("ink"), width: 0.6 } }))];
  const said = (best) => `${timeText(best.us)}, ${numberText(best.calls)} × · ${rate(best.y)}`;
  const least = Math.min(...points.map((point) => point.y)), floor = 10 ** Math.floor(Math.log10(least / 2));
  const build = (place, size) => {
    const tip = make("div", { class: "tip", hidden: true });
    const plot = new uPlot({ ...size, height: 380, pxAlign: 0, legend: { live: false }, cursor: { drag: { x: false, y: false } },
      scales: { x: { time: false, distr: 3, range: () => [low / 1.3, high * 1.3] }, y: { distr: 3, range: () => [floor, top * 2] } },
      axes: [axis("operations a byte", (value) => precise(value, 1)), axis("", rate)], series,
      hooks: { setCursor: [(self) => nearest(self, points, tip, said)] } }, [xs, ...roofs, ...dots], place);
    plot.over.append(tip);
    return plot;
  };
  return chartNode(build, `Memory ${Math.round(spec.bandwidth)} GB/s. Point at a dot for its call.`);
}

function rate(gflops) {
  return gflops >= 1000 ? precise(gflops / 1000, 3) + " TFLOP/s" : precise(gflops, 2) + " GFLOP/s";
}

// Show the name of the point next to the cursor, and what is told of it, if one is near.
function nearest(plot, points, tip, told) {
  const { left, top } = plot.cursor;
  let best = null, least = 14;
  for (const point of left >= 0 ? points : []) {
    const away = Math.hypot(plot.valToPos(point.x, "x") - left, plot.valToPos(point.y, "y") - top);
    if (away < least) [best, least] = [point, away];
  }
  tip.hidden = !best;
  if (!best) return;
  tip.textContent = shown(`${best.name} · ${told(best)}`);
  placeTip(tip, plot, left, top);
}

function placeTip(tip, plot, left, top) {
  const right = left > plot.over.clientWidth / 2;
  tip.style.left = right ? "auto" : left + 12 + "px";
  tip.style.right = right ? plot.over.clientWidth - left + 8 + "px" : "auto";
  tip.style.top = top + 12 + "px";
}
