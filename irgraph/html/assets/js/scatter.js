// Points of two figures; what no other betters in both is joined by a line.
function scatterNode(spec) {
  const known = (value) => typeof value === "number";
  const points = spec.points.filter((point) => known(point.x) && known(point.y));
  if (!points.length) return make("p", { class: "quiet", text: "nothing" });
  const [across, up] = spec.axes.map((one, at) => scaleOf(points.map((point) => (at ? point.y : point.x)), one));
  const said = (best) => spec.axes.map((one, at) => `${one.name} ${cellText(at ? best.y : best.x, one.kind)}`).join(", ");
  const build = (place, size) => {
    const tip = make("div", { class: "tip", hidden: true });
    const plot = new uPlot({ ...size, height: 340, pxAlign: 0, legend: { show: false }, cursor: { drag: { x: false, y: false }, points: { show: false } },
      scales: { x: { time: false, ...across.scale }, y: up.scale },
      axes: [{ ...axis(spec.axes[0].name, across.text), ...across.more }, { ...axis(spec.axes[1].name, up.text), size: 84, ...up.more }],
      series: [{}, { paths: () => null, points: { show: false } }],
      hooks: { draw: [(self) => drawPoints(self, points)], setCursor: [(self) => nearest(self, points, tip, said)] } },
    [across.ends, up.ends], place);
    plot.over.append(tip);
    return plot;
  };
  const groups = [...new Set(points.map((point) => point.group))].filter(Boolean);
  const legend = make("ul", { class: "legend" }, groups.map((group) => {
    const key = make("span", { class: "key" });
    key.style.background = hue(group);
    return make("li", {}, key, make("span", { text: group }));
  }));
  return make("div", {}, chartNode(build, "Point at a dot for what it is; the line joins those that no other betters in both."), legend);
}

// Return a scale: by ratios where values differ by more than fifty times and none is below zero.
function scaleOf(values, { kind }) {
  const least = Math.min(...values), most = Math.max(...values), above = values.filter((value) => value > 0);
  const text = (value) => cellText(value, kind);
  const small = Math.min(...above), more = kind === "bytes" ? { incrs: POWERS } : {};
  if (least >= 0 && above.length && most > 50 * small) {
    const low = least > 0 ? least / 1.5 : 0;
    const scale = least > 0 ? { distr: 3, range: [low, most * 1.5] } : { distr: 4, asinh: small, range: [0, most * 1.5] };
    return { scale, ends: [low || small, most], text, more: {} };
  }
  const pad = (most - least) * 0.08 || Math.abs(most) * 0.05 || 1;
  const low = least >= 0 ? Math.max(least - pad, -0.2 * pad) : least - pad;
  return { scale: { range: [low, most + pad] }, ends: [least, most], text, more };
}

function drawPoints(plot, points) {
  const pen = plot.ctx, ratio = uPlot.pxRatio || window.devicePixelRatio || 1;
  const place = (point) => [plot.valToPos(point.x, "x", true), plot.valToPos(point.y, "y", true)];
  const front = points.filter((point) => point.front).sort((a, b) => a.x - b.x || a.y - b.y);
  pen.save();
  pen.strokeStyle = colour("accent");
  pen.lineWidth = 1.5 * ratio;
  pen.beginPath();
  front.forEach((point) => pen.lineTo(...place(point)));
  pen.stroke();
  for (const point of points) {
    pen.beginPath();
    pen.arc(...place(point), (point.front ? 5 : 3.5) * ratio, 0, 2 * Math.PI);
    pen.fillStyle = hue(point.group);
    pen.fill();
    pen.strokeStyle = colour("ink");
    pen.lineWidth = (point.front ? 1.5 : 0.5) * ratio;
    pen.stroke();
  }
  pen.restore();
}
