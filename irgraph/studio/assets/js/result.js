// What statements would do: the verdict, the figures, what changed; or why they are refused.
function span(value) {
  return `90 % interval ${timeText(value.low)} to ${timeText(value.high)}`;
}

function signedTime(us) {
  return (us > 0 ? "+" : "") + timeText(us);
}

function tone(change) {
  return change.high < 0 ? "good" : change.low > 0 ? "bad" : "";
}

function figureCards(now, after) {
  const cards = [{ label: "step time", value: timeText(now.step.value), detail: span(now.step) }];
  if (after) {
    const { change } = after;
    cards.push({ label: "with this edit", value: timeText(after.step.value), detail: span(after.step), tone: change ? tone(change) : "" });
    if (change) cards.push({ label: "its change", value: signedTime(change.value), detail: `90 % interval ${signedTime(change.low)} to ${signedTime(change.high)}`, tone: tone(change) });
    else cards.push({ label: "its change", value: "not comparable", detail: "only one of them has measured times" });
  }
  const total = after ? after.total : now.total;
  if (total) cards.push({ label: "since the start", value: signedTime(total.value), detail: `90 % interval ${signedTime(total.low)} to ${signedTime(total.high)}`, tone: tone(total) });
  const memory = after || now;
  cards.push({ label: "peak memory of tensors", value: bytesText(memory.memory),
    detail: memory.memory_before === null ? "" : "before: " + bytesText(memory.memory_before) });
  return make("div", { class: "cards" }, cards.map((card, at) => make("div", { class: "card" + (at ? "" : " first") },
    make("div", { class: "label", text: card.label }), make("div", { class: "value " + (card.tone || ""), text: card.value }),
    make("div", { class: "detail", text: card.detail }))));
}

function provenanceNode(figures) {
  const shares = figures.provenance.map(([name, share]) => `${name} ${cellText(share, "share")}`).join(", ");
  return make("p", { class: "hint", text: "Device time comes from: " + (shares || "nothing") });
}

function problemNode(problem) {
  const notes = problem.notes.map((note) => make("li", {}, problemNode(note)));
  return make("div", { class: "problem " + problem.severity },
    make("span", { class: "severity", text: problem.severity }), make("span", { class: "message", text: problem.message }),
    problem.where ? make("span", { class: "quiet", text: " at " + problem.where }) : null,
    notes.length ? make("ul", {}, notes) : null,
    problem.hint ? make("div", { class: "quiet", text: "hint: " + problem.hint }) : null);
}

function entryNode(entry) {
  const more = [...entry.legal.map((text) => "legal: " + text), ...entry.assumed.map((text) => "assumed: " + text)];
  return make("li", {}, make("div", {}, make("b", { text: entry.caller ? entry.caller + ": " : "" }), make("span", { text: entry.summary })),
    more.map((text) => make("div", { class: "quiet", text })),
    make("details", {}, make("summary", { text: "statement" }), make("code", { text: entry.statement })));
}

function verdictOf(found) {
  if (found.wrong) return ["bad", "This cannot be done as it is written."];
  if (!found.legal) return ["bad", "Refused: nothing changes."];
  if (!found.changed) return ["", "Nothing changes."];
  return ["good", "Legal."];
}

function resultNodes(found) {
  const [kind, text] = verdictOf(found);
  const nodes = [make("p", { class: "verdict " + kind, text })];
  if (found.entries && found.entries.length) nodes.push(make("ul", { class: "entries" }, found.entries.map(entryNode)));
  if (found.problems.length) nodes.push(make("div", { class: "problems" }, found.problems.map(problemNode)));
  return nodes;
}

function changesNodes(found) {
  if (!found.changes || !found.changes.rows.length) return [];
  return [make("section", { "aria-labelledby": "changes-title" },
    make("h2", { id: "changes-title", text: "What changes" }), changesTable({ ...found.changes, title: "What changes" }))];
}

// Return the table of changes, whose rows come from the server instead of the page.
function changesTable(spec) {
  const heads = spec.columns.map((column) => make("th", { scope: "col", class: cellClass(column.kind, 0), text: column.name }));
  const rows = spec.rows.map((row) => make("tr", {}, row.map((value, at) => valueCell(value, spec.columns[at].kind))));
  return tableNode(spec, make("table", {}, make("caption", { class: "unseen", text: spec.title }),
    make("thead", {}, make("tr", {}, heads)), make("tbody", {}, rows)));
}

function valueCell(value, kind) {
  const text = cellText(value, kind);
  const exact = text === value ? undefined : JSON.stringify(value);
  return make("td", { class: cellClass(kind, value), "data-value": exact, text });
}

function cellClass(kind, value) {
  if (kind === "change" && value) return "number " + (value > 0 ? "worse" : "better");
  return kind === "text" ? "name" : "number";
}

// Return sections of slices of two models on one clock: what is now, and what would be after.
function bothDrawn(now, after) {
  return now.map((section, at) => joinedSlices(section, after[at]));
}

function joinedSlices(first, second) {
  const texts = first.texts.length, known = first.known.length, tracks = first.tracks.length;
  const named = (part, name) => part.tracks.map(([group, ...rest]) => [group ? `${name} ${group}` : name, ...rest]);
  const more = { track: tracks, name: texts, kind: texts, facts: known };
  const columns = {};
  for (const [key, values] of Object.entries(first.columns)) {
    const by = more[key] || 0;
    columns[key] = values.concat(by ? second.columns[key].map((value) => value + by) : second.columns[key]);
  }
  return { ...first, columns, texts: first.texts.concat(second.texts), tracks: [...named(first, "now"), ...named(second, "after")],
    known: first.known.concat(second.known.map((facts) => facts.map((number) => number + texts))) };
}

// Draw the critical path and the timeline anew; what was drawn before is forgotten.
function drawnNodes(sections) {
  view.watchers.length = 0;
  themed.length = 0;
  view.known = false;
  return sections.map((section) => make("section", { id: section.id, "aria-labelledby": section.id + "-title" },
    make("h2", { id: section.id + "-title", text: section.title }), slicesNode(section)));
}
