// The editor of statements: colours by the grammar's words, words that may follow, marks of errors.
const rules = data.rules.map(([regex, kinds]) => [new RegExp(regex, "y"), kinds]);

CodeMirror.defineMode("irgraph", () => ({
  startState: () => ({ rest: [] }),
  copyState: (state) => ({ rest: state.rest.slice() }),
  token(stream, state) {
    if (!state.rest.length) state.rest = partsAt(stream.string, stream.pos);
    const [length, kind] = state.rest.shift();
    stream.pos += length;
    return kind && "irg-" + kind;
  },
}));

// Return length and kind of the token at a place, or of its parts.
function partsAt(text, at) {
  for (const [regex, kinds] of rules) {
    regex.lastIndex = at;
    const found = regex.exec(text);
    if (!found || !found[0]) continue;
    if (kinds.length === 1) return [[found[0].length, kinds[0]]];
    return kinds.map((kind, part) => [found[part + 1].length, kind]).filter(([length]) => length);
  }
  return [[1, ""]];
}

function editorNode(changedText, apply) {
  const holder = make("div", { class: "editor" });
  const editor = CodeMirror(holder, {
    mode: "irgraph", lineNumbers: true, lineWrapping: true, viewportMargin: Infinity,
    screenReaderLabel: "Statements: Ctrl + Space completes, Ctrl + Enter applies, Tab leaves",
    extraKeys: {
      Tab: false, "Shift-Tab": false, "Ctrl-Space": () => complete(editor),
      "Ctrl-Enter": apply, "Cmd-Enter": apply,
    },
  });
  editor.on("change", () => changedText(editor.getValue()));
  editor.on("inputRead", (_, change) => {
    if (/[\w%."]$/.test(change.text[change.text.length - 1]) && !editor.state.completionActive) complete(editor, true);
  });
  return { holder, editor, marks: [] };
}

function complete(editor, itself = false) {
  editor.showHint({ hint: hints, completeSingle: !itself, closeOnUnfocus: true });
}

function hints(editor, done) {
  const cursor = editor.getCursor();
  const before = editor.getRange({ line: 0, ch: 0 }, cursor);
  ask("complete", { text: before }).then((found) => {
    const from = { line: cursor.line, ch: cursor.ch - (found.part || 0) };
    const list = (found.words || []).map(([text, kind]) => ({ text, render: (node) => hint(node, text, kind) }));
    const offered = { from, to: cursor, list };
    CodeMirror.on(offered, "shown", () => {
      const box = document.querySelector(".CodeMirror-hints");
      box.setAttribute("aria-label", "Words that may follow");
      box.tabIndex = 0;
    });
    done(offered);
  });
}
hints.async = true;

function hint(node, text, kind) {
  node.append(make("span", { text }), make("span", { class: "kind", text: kind }));
}

// Mark where problems are, and their notes.
function markProblems(part, problems) {
  for (const mark of part.marks) mark.clear();
  part.marks = problems.filter((problem) => problem.mark).map((problem) => {
    const [line, column, length] = problem.mark;
    const from = { line: line - 1, ch: column - 1 }, to = part.editor.posFromIndex(part.editor.indexFromPos(from) + length);
    return part.editor.markText(from, to, { className: "marked-" + problem.severity });
  });
}
