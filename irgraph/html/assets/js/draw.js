// Draws slices on a canvas: at most one a pixel and lane, so that many thousands stay smooth.
const GUTTER = 168, AXIS = 22, LANE = 17, BAND = 44, GAP = 8, LETTER = 6.1;

let inks = {}; // colours of the theme, read once a drawing

// Give each lane its place and return the height of all.
function arrange(found, tall) {
  let y = AXIS, track = -1;
  for (const lane of found.lanes) {
    if (lane.track !== track && track >= 0) y += GAP;
    track = lane.track;
    lane.y = y;
    lane.height = tall ? BAND : LANE;
    y += lane.height + 1;
  }
  return y + 4;
}

function paint(canvas, found, state) {
  const width = canvas.clientWidth, height = state.height;
  const ratio = height * width > 4e6 ? 1 : window.devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const pen = canvas.getContext("2d", { alpha: false });
  inks = { paper: colour("paper"), ink: colour("ink"), quiet: colour("quiet"), line: colour("line"), critical: colour("critical") };
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.fillStyle = inks.paper;
  pen.fillRect(0, 0, width, height);
  pen.font = "11px system-ui, sans-serif";
  pen.textBaseline = "middle";
  const scale = (width - GUTTER) / (view.to - view.from);
  paintAxis(pen, width, height, scale);
  pen.save();
  pen.beginPath();
  pen.rect(GUTTER, 0, width - GUTTER, height);
  pen.clip();
  for (const lane of found.lanes) paintLane(pen, found, state, lane, scale, width);
  pen.restore();
  paintLabels(pen, found, height);
}

function paintAxis(pen, width, height, scale) {
  const rough = 90 / scale, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
  const digits = Math.max(3, Math.ceil(Math.log10(view.to / step)) + 1);
  pen.strokeStyle = inks.line;
  pen.fillStyle = inks.quiet;
  pen.lineWidth = 1;
  for (let at = Math.ceil(view.from / step) * step; at <= view.to; at += step) {
    const x = Math.round(GUTTER + (at - view.from) * scale) + 0.5;
    pen.beginPath();
    pen.moveTo(x, AXIS - 6);
    pen.lineTo(x, height);
    pen.stroke();
    if (x < width - 50) pen.fillText(timeText(at, Math.min(digits, 8)), x + 3, AXIS / 2);
  }
}

function paintLane(pen, found, state, lane, scale, width) {
  const { items } = lane;
  let last = -1;
  for (let at = firstAfter(found, lane, view.from); at < items.length; at++) {
    const i = items[at];
    const begin = GUTTER + (found.start[i] - view.from) * scale;
    if (begin > width) break;
    const end = GUTTER + (found.end[i] - view.from) * scale;
    const hit = state.hits === null || state.hits[i];
    if (end - begin < 1 && Math.floor(begin) === last && !(state.hits && hit)) continue;
    last = Math.floor(begin);
    paintSlice(pen, found, state, lane, i, Math.max(begin, GUTTER - 2), Math.min(end, width + 2), hit);
  }
}

function paintSlice(pen, found, state, lane, i, begin, end, hit) {
  const wide = Math.max(end - begin - (end - begin > 3 ? 1 : 0), 1);
  if (!hit) pen.globalAlpha = 0.16;
  pen.fillStyle = found.hues[found.kind[i]];
  pen.fillRect(begin, lane.y, wide, lane.height);
  if (found.critical[i] && !state.tall) {
    pen.fillStyle = inks.critical;
    pen.fillRect(begin, lane.y + lane.height - 2, wide, 2);
  }
  if (wide > 24) {
    const letters = Math.floor((wide - 6) / LETTER), text = shown(found.texts[found.name[i]]);
    pen.fillStyle = INK;
    const label = text.length > letters ? text.slice(0, Math.max(letters - 1, 1)) + "…" : text;
    if (letters > 2) pen.fillText(label, begin + 3, lane.y + lane.height / 2 + (state.tall ? -8 : 0));
    const time = state.tall ? timeText(found.end[i] - found.start[i], 3) : "";
    if (time && letters >= time.length) pen.fillText(time, begin + 3, lane.y + lane.height / 2 + 8);
  }
  if (!hit) pen.globalAlpha = 1;
  if (state.chosen === i) {
    pen.strokeStyle = inks.ink;
    pen.lineWidth = 2;
    pen.strokeRect(begin + 1, lane.y + 1, Math.max(wide - 2, 1), lane.height - 2);
  }
}

function paintLabels(pen, found, height) {
  pen.fillStyle = inks.paper;
  pen.fillRect(0, 0, GUTTER - 1, height);
  pen.fillStyle = inks.ink;
  for (const lane of found.lanes) {
    if (lane.depth) continue;
    const text = shown(trackName(found, lane.track)), letters = Math.floor((GUTTER - 10) / LETTER);
    pen.fillText(text.length > letters ? text.slice(0, letters - 1) + "…" : text, 2, lane.y + lane.height / 2);
  }
}

// Return the slice at a place of the canvas, -1 for none: one thinner than three pixels counts, too.
function sliceAt(canvas, found, x, y) {
  const lane = found.lanes.find((one) => y >= one.y && y < one.y + one.height);
  if (!lane || x < GUTTER) return -1;
  const scale = (canvas.clientWidth - GUTTER) / (view.to - view.from);
  const time = view.from + (x - GUTTER) / scale, near = 3 / scale;
  const at = firstAfter(found, lane, time - near);
  for (let other = at; other < Math.min(at + 8, lane.items.length); other++) {
    const i = lane.items[other];
    if (found.start[i] <= time && found.end[i] > time) return i;
  }
  const i = lane.items[at];
  return i !== undefined && found.start[i] <= time + near ? i : -1;
}
