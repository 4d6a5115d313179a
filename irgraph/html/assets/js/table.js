// Tables: those of the HTML, sorted by a click on a heading, filtered by a word, saved as CSV, with bars beside numbers.
const FIRST_ROWS = 12;
const TABLES = new Map([...document.querySelectorAll("table[data-number]")].map((grid) => [Number(grid.dataset.number), grid]));

function cellValue(cell) {
  return cell.dataset.value === undefined ? cell.textContent : JSON.parse(cell.dataset.value);
}

function tableNode(spec, grid = TABLES.get(spec.number)) {
  const body = grid.tBodies[0];
  const nodes = [...body.rows];
  if (!nodes.length) return make("p", { class: "quiet", text: "nothing" });
  const rows = nodes.map((node) => [...node.cells].map(cellValue));
  const state = { order: rows.map((_, at) => at), by: -1, down: true, word: "", all: false };
  const heads = [...grid.tHead.rows[0].cells];
  const more = make("button", { type: "button", class: "plain", click: () => toggle() });
  const tools = make("div", { class: "tools" });
  heads.forEach((head, at) => {
    head.setAttribute("aria-sort", "none");
    head.replaceChildren(make("button", { type: "button", text: spec.columns[at].name, click: () => sortBy(at) }));
  });
  spec.columns.forEach((column, at) => { if (column.bar) addBars(spec, nodes, rows, at); });

  function sortBy(at) {
    const numbers = spec.columns[at].kind !== "text";
    state.down = state.by === at ? !state.down : numbers;
    state.by = at;
    state.order.sort((a, b) => compare(rows[a][at], rows[b][at]) * (state.down ? -1 : 1) || a - b);
    heads.forEach((head, other) =>
      head.setAttribute("aria-sort", other !== at ? "none" : state.down ? "descending" : "ascending"));
    body.append(...state.order.map((row) => nodes[row]));
    fill();
  }

  function toggle() {
    state.all = !state.all;
    fill();
  }

  function fill() {
    const word = state.word.toLowerCase();
    let found = 0;
    for (const at of state.order) {
      const matches = !word || rows[at].some((value) => typeof value === "string" && value.toLowerCase().includes(word));
      nodes[at].hidden = !matches || (!state.all && found >= FIRST_ROWS);
      found += matches;
    }
    more.textContent = state.all ? "Show fewer" : `Show all ${found} rows`;
    more.hidden = found <= FIRST_ROWS;
  }

  if (rows.length > FIRST_ROWS) {
    tools.append(make("input", { type: "search", placeholder: "Filter", "aria-label": "Filter " + spec.title,
      input: (event) => { state.word = event.target.value; fill(); } }));
  }
  tools.append(make("button", { type: "button", class: "plain", text: "CSV", "aria-label": "Save " + spec.title + " as CSV",
    click: () => save(spec.id + ".csv", csvText(spec.columns, rows), "text/csv") }));
  fill();
  const scroll = make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table: " + spec.title }, grid);
  return make("div", { class: "table" }, tools, scroll, more);
}

// Add a bar before each value of a column; columns of one kind with bars share a scale.
function addBars(spec, nodes, rows, at) {
  const column = spec.columns[at];
  const same = spec.columns.flatMap((other, place) => other.bar && other.kind === column.kind ? [place] : []);
  let most = 0;
  for (const row of rows) for (const other of same) most = Math.max(most, Math.abs(row[other] || 0));
  nodes.forEach((node, number) => {
    const row = rows[number];
    const bar = make("span", { class: "bar" });
    bar.style.width = most ? (100 * Math.abs(row[at] || 0)) / most + "%" : "0";
    const kind = typeof row[0] === "string" ? row[0] : "";
    bar.style.background = column.name === "before" ? "var(--before)" : column.name === "after" ? "var(--after)" : hue(kind);
    node.cells[at].classList.add("barred");
    node.cells[at].prepend(make("span", { class: "track" }, bar));
  });
}

function compare(a, b) {
  if (a === null || b === null) return (a === null) - (b === null);
  return typeof a === "string" && typeof b === "string" ? a.localeCompare(b) : a < b ? -1 : a > b ? 1 : 0;
}
