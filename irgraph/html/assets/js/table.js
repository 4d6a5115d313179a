// Tables: sorted by a click on a heading, filtered by a word, saved as CSV; bars beside numbers.
const FIRST_ROWS = 12;

function tableNode(spec) {
  const state = { order: spec.rows.map((_, at) => at), by: -1, down: true, word: "", all: false };
  const body = make("tbody");
  const heads = spec.columns.map((column, at) => headNode(column, () => sortBy(at)));
  const more = make("button", { type: "button", class: "plain", click: () => toggle() });
  const tools = make("div", { class: "tools" });
  const grid = make("table", {},
    make("caption", { class: "unseen", text: spec.title }), make("thead", {}, make("tr", {}, heads)), body);
  const most = spec.columns.map((column, at) => column.bar ? scale(spec, at) : 0);

  function sortBy(at) {
    const numbers = spec.columns[at].kind !== "text";
    state.down = state.by === at ? !state.down : numbers;
    state.by = at;
    state.order.sort((a, b) => compare(spec.rows[a][at], spec.rows[b][at]) * (state.down ? -1 : 1) || a - b);
    heads.forEach((head, other) =>
      head.setAttribute("aria-sort", other !== at ? "none" : state.down ? "descending" : "ascending"));
    fill();
  }

  function toggle() {
    state.all = !state.all;
    fill();
  }

  function fill() {
    const word = state.word.toLowerCase();
    const found = state.order.filter((at) => !word || spec.rows[at].some(
      (value) => typeof value === "string" && value.toLowerCase().includes(word)));
    const rows = state.all ? found : found.slice(0, FIRST_ROWS);
    body.replaceChildren(...rows.map((at) => rowNode(spec, spec.rows[at], most)));
    more.textContent = state.all ? "Show fewer" : `Show all ${found.length} rows`;
    more.hidden = found.length <= FIRST_ROWS;
  }

  if (spec.rows.length > FIRST_ROWS) {
    tools.append(make("input", { type: "search", placeholder: "Filter", "aria-label": "Filter " + spec.title,
      input: (event) => { state.word = event.target.value; fill(); } }));
  }
  tools.append(make("button", { type: "button", class: "plain", text: "CSV", "aria-label": "Save " + spec.title + " as CSV",
    click: () => save(spec.id + ".csv", csvText(spec.columns, spec.rows), "text/csv") }));
  fill();
  const scroll = make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table: " + spec.title }, grid);
  if (!spec.rows.length) return make("p", { class: "quiet", text: "nothing" });
  return make("div", { class: "table" }, tools, scroll, more);
}

function headNode(column, sort) {
  const button = make("button", { type: "button", text: column.name, click: sort });
  return make("th", { scope: "col", class: column.kind === "text" ? "" : "number", "aria-sort": "none" }, button);
}

function scale(spec, at) {
  const same = spec.columns.map((column, other) => column.bar && column.kind === spec.columns[at].kind ? other : -1);
  let most = 0;
  for (const row of spec.rows) for (const other of same) if (other >= 0) most = Math.max(most, Math.abs(row[other] || 0));
  return most;
}

function rowNode(spec, row, most) {
  const kindOf = typeof row[0] === "string" ? row[0] : "";
  return make("tr", {}, spec.columns.map((column, at) => {
    const text = cellText(row[at], column.kind);
    if (!column.bar) {
      const tone = column.kind === "change" && row[at] ? (row[at] > 0 ? " worse" : " better") : "";
      return make("td", { class: (column.kind === "text" ? "name" : "number") + tone, text });
    }
    const bar = make("span", { class: "bar" });
    bar.style.width = most[at] ? (100 * Math.abs(row[at] || 0)) / most[at] + "%" : "0";
    bar.style.background = column.name === "before" ? "var(--before)" : column.name === "after" ? "var(--after)" : hue(kindOf);
    return make("td", { class: "number barred" }, make("span", { class: "track" }, bar), make("span", { text }));
  }));
}

function compare(a, b) {
  if (a === null || b === null) return (a === null) - (b === null);
  return typeof a === "string" && typeof b === "string" ? a.localeCompare(b) : a < b ? -1 : a > b ? 1 : 0;
}
