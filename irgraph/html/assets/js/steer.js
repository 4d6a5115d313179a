// Steers a section of slices with a mouse, a finger or the keyboard.
function steer(part) {
  const { canvas } = part;
  let held = null;

  const place = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  const timeAt = (x) => view.from + ((x - GUTTER) / (canvas.clientWidth - GUTTER)) * (view.to - view.from);

  canvas.addEventListener("pointerdown", (event) => {
    const [x, y] = place(event);
    held = { x, y, from: view.from, to: view.to, moved: false, range: event.shiftKey || y < AXIS };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = place(event);
    if (!held) return tell(part, sliceAt(canvas, part.found, x, y), x, y);
    if (Math.abs(x - held.x) > 3) held.moved = true;
    if (!held.moved) return undefined;
    tell(part, -1);
    if (held.range) return rangeOver(canvas, part, held.x, x);
    const moved = ((held.x - x) / (canvas.clientWidth - GUTTER)) * (held.to - held.from);
    return look(held.from + moved, held.to + moved);
  });
  canvas.addEventListener("pointerup", (event) => {
    const [x, y] = place(event), was = held;
    held = null;
    if (!was) return;
    if (!was.moved) choose(part, sliceAt(canvas, part.found, x, y));
    else if (was.range) look(...[timeAt(was.x), timeAt(x)].sort((a, b) => a - b));
  });
  canvas.addEventListener("pointercancel", () => { held = null; });
  canvas.addEventListener("pointerleave", () => tell(part, -1));
  canvas.addEventListener("dblclick", (event) => {
    const i = sliceAt(canvas, part.found, ...place(event));
    if (i >= 0) fit(part, i);
  });
  canvas.addEventListener("wheel", (event) => {
    const sideways = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
    if (event.ctrlKey || event.metaKey) zoom(Math.exp(event.deltaY * 0.003), timeAt(place(event)[0]));
    else if (sideways) pan((event.deltaX || event.deltaY) / 900);
    else return;
    event.preventDefault();
  }, { passive: false });
  canvas.addEventListener("keydown", (event) => pressed(part, event));
}

function rangeOver(canvas, part, first, second) {
  part.redraw();
  const pen = canvas.getContext("2d");
  pen.globalAlpha = 0.25;
  pen.fillStyle = colour("accent");
  pen.fillRect(Math.min(first, second), 0, Math.abs(second - first), part.state.height);
  pen.globalAlpha = 1;
}

function fit(part, i) {
  const { found } = part, wide = (found.end[i] - found.start[i]) * 0.1;
  look(found.start[i] - wide, found.end[i] + wide);
}

function pressed(part, event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const { state } = part, shift = event.shiftKey;
  const acts = {
    ArrowLeft: () => (shift ? pan(-0.25) : beside(part, -1)),
    ArrowRight: () => (shift ? pan(0.25) : beside(part, 1)),
    ArrowUp: () => above(part, -1),
    ArrowDown: () => above(part, 1),
    "+": () => zoom(1 / 1.6, focusTime(part)), "=": () => zoom(1 / 1.6, focusTime(part)),
    "-": () => zoom(1.6, focusTime(part)), "0": () => look(0, view.total),
    Enter: () => state.chosen >= 0 && fit(part, state.chosen),
    Escape: () => choose(part, -1),
  };
  if (!Object.hasOwn(acts, event.key)) return;
  acts[event.key]();
  event.preventDefault();
}

function focusTime(part) {
  const { found, state } = part;
  const time = state.chosen >= 0 ? (found.start[state.chosen] + found.end[state.chosen]) / 2 : -1;
  return time >= view.from && time <= view.to ? time : undefined;
}

// Choose the slice before or after the chosen one on its lane.
function beside(part, move) {
  const { found, state } = part;
  if (state.chosen < 0) return first(part);
  const lane = laneOf(part, state.chosen), next = lane.items[lane.items.indexOf(state.chosen) + move];
  if (next === undefined) return undefined;
  choose(part, next, true);
  return reveal(part, next);
}

// Choose the slice at the same time on the lane above or below.
function above(part, move) {
  const { found, state } = part;
  if (state.chosen < 0) return first(part);
  const lane = found.lanes[found.lanes.indexOf(laneOf(part, state.chosen)) + move];
  if (!lane) return undefined;
  const time = (found.start[state.chosen] + found.end[state.chosen]) / 2;
  const next = lane.items[Math.min(firstAfter(found, lane, time), lane.items.length - 1)];
  choose(part, next, true);
  return reveal(part, next);
}

function first(part) {
  const lane = part.found.lanes[0];
  choose(part, lane.items[Math.min(firstAfter(part.found, lane, view.from), lane.items.length - 1)], true);
}
