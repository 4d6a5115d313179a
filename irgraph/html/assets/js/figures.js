// What a page begins with: large figures, the interval, shares by provenance; notes and facts.
const PROVENANCE = {
  measured: "this op, in a trace of that device",
  scaled: "a model, scaled by what was measured of the op before it changed",
  learned: "a trained model",
  heuristic: "a formula",
  none: "no model knows it: a lower bound",
};

function headlineNode(spec) {
  const cards = spec.numbers.map((number, at) => make("div", { class: at ? "card" : "card first" },
    make("div", { class: "label", text: number.label }),
    make("div", { class: "value " + (number.tone || ""), text: number.value }),
    make("div", { class: "detail " + (number.tone || ""), text: number.detail || "" })));
  return make("section", { class: "headline", "aria-label": "Step time" },
    make("div", { class: "cards" }, cards),
    spec.span && spec.of ? make("div", { class: "label", text: spec.of }) : null,
    spec.span ? spanNode(spec.span) : null,
    spec.provenance.length ? sharesNode("Device time by provenance", spec.provenance) : null,
    spec.longest.length ? longestNode(spec.longest) : null);
}

// What the step waits for most; a click shows where on the critical path that is.
function longestNode(longest) {
  const most = Math.max(...longest.map(([, time]) => time)) || 1;
  const rows = longest.map(([name, time, share]) => {
    const bar = make("span", { class: "bar" });
    bar.style.width = (100 * time) / most + "%";
    const button = make("button", { type: "button", class: "link", text: name, title: "Show on the critical path",
      click: () => searchPath(name) });
    return make("tr", {}, make("th", { scope: "row" }, button), make("td", { class: "number", text: timeText(time, 3) }),
      make("td", { class: "number", text: cellText(share, "share") }), make("td", { class: "wide" }, make("span", { class: "track" }, bar)));
  });
  return make("div", { class: "longest" }, make("div", { class: "label", text: "Most time on the critical path" }),
    make("table", {}, make("tbody", {}, rows)));
}

function searchPath(name) {
  const input = document.querySelector("#path input[type=search]");
  if (!input) return;
  input.value = `"${name}"`;
  input.dispatchEvent(new Event("input"));
  document.getElementById("path").scrollIntoView();
  input.focus({ preventScroll: true });
}

function listingNode(spec) {
  return make("div", { class: "command" }, make("pre", { tabindex: "0", role: "region", "aria-label": spec.title, text: spec.code }));
}

// The 90 % interval around the prediction, and the measured time if there is one.
function spanNode(span) {
  const known = [span.low, span.value, span.high, span.measured].filter((x) => typeof x === "number");
  const low = Math.min(...known), high = Math.max(...known), pad = (high - low) * 0.08 || low * 0.02 || 1;
  const at = (us) => 4 + (92 * (us - low + pad)) / (high - low + 2 * pad);
  const mark = (us, name) => draw("line", { x1: at(us) + "%", x2: at(us) + "%", y1: 6, y2: 26, class: name });
  const label = (us, text, y) => draw("text", { x: at(us) + "%", y, "text-anchor": "middle", text });
  const close = typeof span.measured === "number" ? ` measured ${timeText(span.measured)}` : "";
  return make("div", { class: "span" }, draw("svg", { role: "img", height: 58, width: "100%",
    "aria-label": `90 % interval ${timeText(span.low)} to ${timeText(span.high)}, predicted ${timeText(span.value)}${close}` },
    draw("line", { x1: at(span.low) + "%", x2: at(span.high) + "%", y1: 16, y2: 16, class: "interval" }),
    mark(span.low, "end"), mark(span.high, "end"), mark(span.value, "predicted"),
    label(span.low, timeText(span.low), 40), label(span.high, timeText(span.high), 40),
    typeof span.measured === "number" ? mark(span.measured, "measured") : null,
    typeof span.measured === "number" ? label(span.measured, "measured", 56) : null,
    draw("circle", { cx: at(span.value) + "%", cy: 16, r: 5, class: "predicted" })));
}

function sharesNode(title, shares) {
  const bar = make("div", { class: "stack", role: "img",
    "aria-label": title + ": " + shares.map(([name, share]) => `${name} ${cellText(share, "share")}`).join(", ") });
  const legend = make("ul", { class: "legend" });
  for (const [name, share] of shares) {
    const part = make("span", { title: PROVENANCE[name] });
    part.style.width = 100 * share + "%";
    part.style.background = hue(name);
    bar.append(part);
    const key = make("span", { class: "key" });
    key.style.background = hue(name);
    const meaning = PROVENANCE[name] ? " – " + PROVENANCE[name] : "";
    legend.append(make("li", {}, key, make("b", { text: `${name} ${cellText(share, "share")}` }), make("span", { text: meaning })));
  }
  return make("div", { class: "shares" }, make("div", { class: "label", text: title }), bar, legend);
}

const MOST_NOTES = 5; // more are folded

function notesNode(spec) {
  if (!spec.lines.length) return null;
  const items = spec.lines.map((line) => make("li", { text: line }));
  const list = make("ul", { class: spec.warning ? "notes warning" : "notes" }, items);
  if (items.length <= MOST_NOTES) return list;
  return make("details", { class: "folded" }, make("summary", { text: `${items.length} ${spec.warning ? "warnings and repairs" : "remarks"}` }), list);
}

function factsNode(spec) {
  const rows = spec.rows.map(([label, text]) => make("tr", {},
    make("th", { scope: "row", text: label }), make("td", { class: "name", text })));
  return make("table", { class: "facts" }, make("tbody", {}, rows));
}

let numbered = 0;

function tabsNode(spec) {
  const group = "tabs" + ++numbered;
  const panels = spec.tabs.map((tab, at) => make("div", { role: "tabpanel", id: `${group}-panel${at}`,
    "aria-labelledby": `${group}-tab${at}`, "data-label": tab.label }, partNode(tab.section)));
  const buttons = spec.tabs.map((tab, at) => make("button", { type: "button", role: "tab", id: `${group}-tab${at}`,
    "aria-controls": `${group}-panel${at}`, text: tab.label, click: () => choose(at), keydown: (event) => step(event, at) }));

  function choose(at) {
    panels.forEach((panel, other) => { panel.hidden = other !== at; });
    buttons.forEach((button, other) => {
      button.setAttribute("aria-selected", other === at);
      button.tabIndex = other === at ? 0 : -1;
    });
  }

  function step(event, at) {
    const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!move) return;
    const next = (at + move + buttons.length) % buttons.length;
    choose(next);
    buttons[next].focus();
    event.preventDefault();
  }

  choose(0);
  return make("div", { class: "tabs" }, make("div", { role: "tablist", "aria-label": spec.title }, buttons), panels);
}
