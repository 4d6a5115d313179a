// Builds the page, and keeps it in step with the session on the server.
const PAUSE = 150; // milliseconds without typing after which statements are tried
let state = data.state, tries = 0, waiting = 0, busy = false;

const ops = opsPart(async (verb, chosen) => {
  const found = await ask("select", { verb, ops: chosen });
  if (found.text) write(found.text);
  else showResult({ legal: false, problems: found.problems });
});
const typing = editorNode(() => later(), () => apply());
const figuresAt = make("section", { class: "figures", "aria-label": "Step time", "aria-live": "polite" });
const result = make("div", { class: "result", role: "status" });
const changesAt = make("div", {});
const drawings = make("div", { class: "drawings" });
const editsAt = make("div", { class: "history" });
const warningsAt = make("div", {});
const plain = (text, click, more = {}) => make("button", { type: "button", class: "plain", text, click, ...more });
const applyButton = plain("Apply", () => apply(), { class: "plain strong" });
const undoButton = plain("Undo", () => move(-1)), redoButton = plain("Redo", () => move(1));
const saving = savePart();

function text() {
  return typing.editor.getValue();
}

function write(words) {
  const before = text().trim();
  typing.editor.setValue(before && !words.startsWith("apply ") ? before + "\n" + words : words);
  typing.editor.setCursor(typing.editor.lineCount(), 0);
  typing.editor.focus();
}

// Try what is written once nothing was typed for a moment.
function later() {
  clearTimeout(waiting);
  waiting = setTimeout(attempt, PAUSE);
  document.documentElement.dataset.tried = "no";
}

async function attempt() {
  const number = ++tries, words = text();
  const found = words.trim() ? await ask("try", { text: words, number }) : null;
  if (number !== tries || (found && found.late)) return;
  if (found) showResult(found);
  else showState();
  document.documentElement.dataset.tried = "yes";
}

function showResult(found) {
  markProblems(typing, found.problems);
  result.replaceChildren(...resultNodes(found));
  markOps(ops, found.marks || {});
  figuresAt.replaceChildren(figureCards(state.figures, found.figures || null), provenanceNode(found.figures || state.figures));
  changesAt.replaceChildren(...changesNodes(found));
  drawings.replaceChildren(...drawnNodes(found.drawn ? bothDrawn(state.drawn, found.drawn) : state.drawn));
  showWarnings(found.warnings || state.warnings);
  applyButton.disabled = !found.legal;
}

function showState() {
  markProblems(typing, []);
  result.replaceChildren(make("p", { class: "quiet",
    text: "Write statements, pick a pass, or select ops: what they would do shows here at once." }));
  markOps(ops, {});
  figuresAt.replaceChildren(figureCards(state.figures, null), provenanceNode(state.figures));
  changesAt.replaceChildren();
  drawings.replaceChildren(...drawnNodes(state.drawn));
  showWarnings(state.warnings);
  applyButton.disabled = true;
}

function showWarnings(lines) {
  warningsAt.replaceChildren(...(lines.length ? [make("ul", { class: "notes warning" }, lines.map((line) => make("li", { text: line })))] : []));
}

function take(found) {
  state = found.state;
  showOps(ops, state.ops);
  undoButton.disabled = !state.done.length;
  redoButton.disabled = !state.undone.length;
  editsAt.replaceChildren(editsNode(state, move));
  tries++;
  clearTimeout(waiting);
  showState();
  document.documentElement.dataset.tried = "yes";
}

async function change(what, value, said) {
  if (busy) return;
  busy = true;
  const found = await ask(what, value);
  busy = false;
  if (!found.state) return showResult(found);
  take(found);
  announce(`${said}: step time ${timeText(state.figures.step.value)}`);
  return found;
}

async function apply() {
  const words = text();
  if (!words.trim()) return;
  if (await change("apply", { text: words }, "applied")) {
    typing.editor.setValue("");
    clearTimeout(waiting);
    showState();
    document.documentElement.dataset.tried = "yes";
    typing.editor.focus();
  }
}

async function move(by) {
  await change("move", { by }, by < 0 ? "undone" : "applied again");
  if (text().trim()) later();
}

// The dialog that names the files.
function savePart() {
  const field = (label, value) => {
    const input = make("input", { type: "text", value, required: true, spellcheck: "false" });
    return [input, make("label", {}, make("span", { text: label }), input)];
  };
  const [script, scriptNode] = field("Script", data.names.script), [model, modelNode] = field("Model", data.names.model);
  const said = make("div", { class: "said", role: "status" });
  const replace = plain("Replace", () => write(true), { hidden: true });
  const dialog = make("dialog", { "aria-labelledby": "save-title" }, make("h2", { id: "save-title", text: "Save" }),
    make("p", { class: "quiet", text: "Into " + data.folder }), scriptNode, modelNode, said,
    make("div", { class: "tools" }, plain("Close", () => dialog.close()), replace, plain("Save", () => write(false), { class: "plain strong" })));

  async function write(over) {
    const found = await ask("save", { script: script.value, model: model.value, replace: over });
    replace.hidden = !found.taken;
    said.replaceChildren(...(found.problems || []).map(problemNode));
    if (found.taken) said.textContent = shown(found.taken);
    if (found.saved) said.textContent = "Saved " + found.saved.map(shown).join(" and ") + ".";
  }

  return { dialog, open: () => { said.replaceChildren(); replace.hidden = true; dialog.showModal(); } };
}

// Panels of which one is shown at a time.
function panels(title, parts) {
  const tabs = parts.map(([label], at) => make("button", { type: "button", role: "tab", id: "tab" + at, "aria-controls": "panel" + at, text: label,
    click: () => show(at), keydown: (event) => step(event, at) }));
  const boxes = parts.map(([, node], at) => make("div", { role: "tabpanel", id: "panel" + at, "aria-labelledby": "tab" + at }, node));

  function show(at) {
    boxes.forEach((box, other) => { box.hidden = other !== at; });
    tabs.forEach((tab, other) => { tab.setAttribute("aria-selected", other === at); tab.tabIndex = other === at ? 0 : -1; });
  }

  function step(event, at) {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    const next = (at + by + tabs.length) % tabs.length;
    show(next);
    tabs[next].focus();
    event.preventDefault();
  }

  show(0);
  return make("section", { class: "panels", "aria-label": title }, make("div", { role: "tablist", "aria-label": title }, tabs), boxes);
}

document.title = shown(data.title) + " – irgraph studio";
document.body.append(
  make("a", { class: "skip", href: "#content", text: "Skip to the statements" }),
  make("header", {}, make("div", {}, make("h1", { text: data.title }), make("p", { class: "about", text: data.about })),
    make("div", { class: "tools", role: "group", "aria-label": "Session" }, undoButton, redoButton, plain("Save …", () => saving.open()),
      plain("Light / dark", () => setTheme(isDark() ? "light" : "dark")))),
  make("main", {}, figuresAt, warningsAt,
    make("div", { class: "columns" },
      panels("The model and what to do with it", [["Ops", ops.node], ["Passes", passesNode(write)], ["Edits", editsAt]]),
      make("section", { class: "writing", id: "content", "aria-labelledby": "writing-title" }, make("h2", { id: "writing-title", text: "Statements" }),
        typing.holder, make("div", { class: "tools" },
          make("span", { class: "hint", text: "Ctrl + Space completes, Ctrl + Enter applies, Tab leaves the editor." }),
          plain("Clear", () => { typing.editor.setValue(""); typing.editor.focus(); }), applyButton), result)),
    changesAt, drawings),
  saving.dialog, live);
setTheme("");
dark.addEventListener("change", () => setTheme(chosen));
take({ state });
typing.editor.refresh();
document.documentElement.dataset.ready = "yes";
