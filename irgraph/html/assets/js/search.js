// Searches slices by their names, kinds and facts: others fade, and one can go from hit to hit.
function searchNode(spec, part) {
  const { found, state } = part;
  const count = make("span", { class: "count", role: "status" });
  const input = make("input", { type: "search", placeholder: "Search: op, module, kernel …", "aria-label": "Search " + spec.title });
  const go = (move) => {
    const hits = state.order || [];
    if (!hits.length) return;
    const at = hits.indexOf(state.chosen);
    const next = hits[(at + move + hits.length) % hits.length];
    choose(part, next, true);
    reveal(part, next);
  };

  function find() {
    const word = input.value.trim().toLowerCase();
    state.hits = word ? hitsOf(found, word) : null;
    state.order = state.hits ? [...state.hits.keys()].filter((i) => state.hits[i]).sort((a, b) => found.start[a] - found.start[b]) : [];
    const time = state.order.reduce((sum, i) => sum + found.end[i] - found.start[i], 0);
    count.textContent = word ? `${state.order.length} found, ${timeText(time)} in sum` : "";
    previous.disabled = next.disabled = !state.order.length;
    part.redraw();
  }

  const previous = make("button", { type: "button", class: "plain", text: "‹", "aria-label": "Previous hit", disabled: true, click: () => go(-1) });
  const next = make("button", { type: "button", class: "plain", text: "›", "aria-label": "Next hit", disabled: true, click: () => go(1) });
  input.addEventListener("input", find);
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter") go(event.shiftKey ? -1 : 1);
  });
  return make("span", { class: "search" }, input, previous, next, count);
}

// Return for each slice whether a word is in its name, its kind or its facts; in quotes, is one of them.
function hitsOf(found, word) {
  const whole = word.length > 2 && word.startsWith('"') && word.endsWith('"') ? word.slice(1, -1) : null;
  const texts = found.texts.map((text) => (whole === null ? text.toLowerCase().includes(word) : text.toLowerCase() === whole));
  const facts = found.known.map((numbers) => numbers.some((number, at) => at % 2 === 1 && texts[number]));
  const hits = new Uint8Array(found.count);
  for (let i = 0; i < found.count; i++) {
    hits[i] = texts[found.name[i]] || texts[found.kind[i]] || facts[found.facts[i]] ? 1 : 0;
  }
  return hits;
}
