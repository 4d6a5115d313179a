// The passes of the library: a click writes the statement that applies one.
function passesNode(write) {
  const rows = data.passes.map(([name, description, call, changes]) => make("li", {},
    make("button", { type: "button", class: "plain", text: name, click: () => write("apply " + call) }),
    make("span", { text: description + (changes ? " Changes results." : "") })));
  return make("ul", { class: "passes" }, rows);
}

function editsNode(state, go) {
  const edits = [...state.done, ...state.undone];
  if (!edits.length) return make("p", { class: "quiet", text: "No edit is applied yet." });
  return make("ol", { class: "edits" }, edits.map((edit, at) => make("li", { class: at < state.done.length ? "" : "undone" },
    make("code", { text: edit.text }), make("span", { class: "quiet", text: timeText(edit.step) }),
    make("button", { type: "button", class: "plain", text: at < state.done.length ? "Back to before it" : "Up to here",
      click: () => go(at < state.done.length ? at - state.done.length : at - state.done.length + 1) }))));
}
