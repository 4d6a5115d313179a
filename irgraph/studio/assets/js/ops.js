// The list of ops: thousands of rows, of which those in view are drawn; chosen by mouse or keyboard.
const ROW = 24, SPARE = 12;
const MARKS = { removed: "−", added: "+", moved: ">", retyped: "~", rewired: "=", repriced: "$" };

function opsPart(act) {
  const part = { ops: null, order: [], marks: {}, chosen: new Set(), active: 0, anchor: 0, word: "", by: "launch" };
  part.space = make("div", { class: "space" });
  part.list = make("div", { class: "list", role: "listbox", tabindex: "0", "aria-multiselectable": "true",
    "aria-label": "Ops in launch order", keydown: (event) => opKey(part, event), scroll: () => drawRows(part) }, part.space);
  part.list.addEventListener("click", (event) => opClick(part, event));
  part.count = make("span", { class: "count", role: "status" });
  const search = make("input", { type: "search", placeholder: "Filter: op, tensor, module …", "aria-label": "Filter the ops",
    input: (event) => { part.word = event.target.value; arrangeOps(part); } });
  const sort = make("select", { "aria-label": "Order of the ops", change: (event) => { part.by = event.target.value; arrangeOps(part); } },
    [["launch", "launch order"], ["device", "device time"], ["path", "time on the critical path"]].map(
      ([value, text]) => make("option", { value, text })));
  const verbs = data.forms.map(([verb, text]) => make("button", { type: "button", class: "plain", text, disabled: true,
    click: () => act(verb, [...part.chosen].sort((a, b) => a - b)) }));
  part.verbs = verbs;
  part.facts = make("p", { class: "hint", text: "Click, Ctrl + click, Shift + click; or arrows, Space, Shift + arrows, Escape." });
  part.node = make("div", { class: "ops" }, make("div", { class: "tools" }, search, sort, part.count), part.list,
    part.facts, make("div", { class: "verbs", role: "group", "aria-label": "Write a statement about the selected ops" }, verbs));
  new ResizeObserver(() => drawRows(part)).observe(part.list);
  return part;
}

function showOps(part, ops) {
  part.ops = ops;
  part.marks = {};
  part.chosen.clear();
  part.active = part.anchor = 0;
  part.most = Math.max(1e-9, ...ops.path);
  arrangeOps(part);
}

function markOps(part, marks) {
  part.marks = marks;
  drawRows(part);
}

function arrangeOps(part) {
  const { ops, by } = part, word = part.word.trim().toLowerCase();
  part.order = ops.text.map((_, at) => at).filter((at) => !word || ops.text[at].toLowerCase().includes(word)
    || ops.module[at].toLowerCase().includes(word));
  if (by !== "launch") part.order.sort((a, b) => ops[by][b] - ops[by][a] || a - b);
  part.active = part.anchor = 0;
  part.count.textContent = word ? `${part.order.length} of ${ops.text.length} ops` : `${ops.text.length} ops`;
  part.list.scrollTop = 0;
  part.space.style.height = part.order.length * ROW + "px";
  drawRows(part);
  tellChosen(part);
}

function drawRows(part) {
  const first = Math.max(0, Math.floor(part.list.scrollTop / ROW) - SPARE);
  const last = Math.min(part.order.length, Math.ceil((part.list.scrollTop + part.list.clientHeight) / ROW) + SPARE);
  const rows = [];
  for (let at = first; at < last; at++) rows.push(opRow(part, at));
  part.space.replaceChildren(...rows);
  const active = part.order.length && part.active >= first && part.active < last;
  if (active) part.list.setAttribute("aria-activedescendant", "op" + part.active);
  else part.list.removeAttribute("aria-activedescendant");
}

function opRow(part, at) {
  const { ops, order } = part, op = order[at], kind = part.marks[op];
  const time = ops.device[op] ? timeText(ops.device[op], 3) : "";
  const bar = make("span", { class: "bar" });
  bar.style.width = (100 * ops.path[op]) / part.most + "%";
  const text = make("span", { class: "what", text: (part.by === "launch" && !part.word ? "  ".repeat(Math.min(ops.depth[op], 12)) : "") + ops.text[op] });
  const row = make("div", { class: "row" + (kind ? " " + kind : "") + (at === part.active ? " active" : ""), role: "option", id: "op" + at,
    "aria-selected": part.chosen.has(op) ? "true" : "false", "aria-setsize": order.length, "aria-posinset": at + 1, "data-at": at, title: ops.text[op] },
    make("span", { class: "mark", text: kind ? MARKS[kind] : "", "aria-label": kind || null, role: kind ? "img" : null }), text,
    make("span", { class: "track" }, bar), make("span", { class: "time", text: time }));
  row.style.top = at * ROW + "px";
  return row;
}

function opClick(part, event) {
  const row = event.target.closest(".row");
  if (row) chooseOp(part, Number(row.dataset.at), event.shiftKey, event.ctrlKey || event.metaKey);
}

// Choose a row alone, up to it (range), or beside what is chosen (add).
function chooseOp(part, at, range, add) {
  const { chosen, order } = part;
  if (!add) chosen.clear();
  if (range) {
    const [low, high] = [part.anchor, at].sort((a, b) => a - b);
    for (let one = low; one <= high; one++) chosen.add(order[one]);
  } else {
    if (add && chosen.has(order[at])) chosen.delete(order[at]);
    else chosen.add(order[at]);
    part.anchor = at;
  }
  part.active = at;
  drawRows(part);
  tellChosen(part);
}

function tellChosen(part) {
  const { chosen, ops } = part, sum = (name) => [...chosen].reduce((total, op) => total + ops[name][op], 0);
  for (const button of part.verbs) button.disabled = !chosen.size;
  if (!chosen.size) part.facts.textContent = "Click, Ctrl + click, Shift + click; or arrows, Space, Shift + arrows, Escape.";
  else {
    const [first] = chosen, by = ops.by[first], name = chosen.size === 1 ? shown(`${ops.phase[first]}${ops.module[first] ? ", module " + ops.module[first] : ""}: ` ) : "";
    part.facts.textContent = `${name}${chosen.size} selected, device ${timeText(sum("device"), 3)}, on the critical path ${timeText(sum("path"), 3)}`
      + (chosen.size === 1 && by ? `, by ${by}` : "");
  }
}

function opKey(part, event) {
  if (event.altKey || !part.order.length) return;
  const page = Math.max(1, Math.floor(part.list.clientHeight / ROW) - 1), last = part.order.length - 1;
  const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -last, End: last };
  if (Object.hasOwn(moves, event.key)) {
    const to = Math.min(Math.max(part.active + moves[event.key], 0), last);
    if (event.shiftKey) chooseOp(part, to, true, false);
    else part.anchor = to;
    part.active = to;
    revealOp(part);
  } else if (event.key === " " || event.key === "Enter") chooseOp(part, part.active, false, event.key === " ");
  else if (event.key === "Escape") { part.chosen.clear(); tellChosen(part); drawRows(part); }
  else if (event.key === "a" && (event.ctrlKey || event.metaKey)) { part.order.forEach((op) => part.chosen.add(op)); tellChosen(part); drawRows(part); }
  else return;
  event.preventDefault();
}

function revealOp(part) {
  const top = part.active * ROW, { list } = part;
  if (top < list.scrollTop) list.scrollTop = top;
  else if (top + ROW > list.scrollTop + list.clientHeight) list.scrollTop = top + ROW - list.clientHeight;
  drawRows(part);
}
