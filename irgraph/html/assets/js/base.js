// What all parts share: making nodes, showing texts and figures, the theme, and saving files.
const data = JSON.parse(document.getElementById("data").textContent);

// Characters that hide or turn text around are shown by their codes.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb]/g;
const PAIRS = /[\ud800-\udbff][\udc00-\udfff]/;

function shown(value) {
  const text = String(value);
  if (PAIRS.test(text)) return text.replace(/[\u0000-\u0008\u202a-\u202e\u2066-\u2069]/g, code);
  return text.replace(HIDDEN, code);
}

function code(char) {
  return "\\u" + char.charCodeAt(0).toString(16).padStart(4, "0");
}

// Return a node: text is text, never markup; attributes that are functions are listeners.
function make(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (typeof value === "function") node.addEventListener(key, value);
    else if (key === "text") node.textContent = shown(value);
    else node.setAttribute(key, value === true ? "" : shown(value));
  }
  for (const child of children.flat()) if (child) node.append(child);
  return node;
}

const SVG = "http://www.w3.org/2000/svg";

function draw(name, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "text") node.textContent = shown(value);
    else node.setAttribute(key, value);
  }
  node.append(...children.filter(Boolean));
  return node;
}

function timeText(us, digits = 4) {
  const size = Math.abs(us);
  if (size >= 1e6) return precise(us / 1e6, digits) + " s";
  if (size >= 1e3) return precise(us / 1e3, digits) + " ms";
  if (size >= 1 || size === 0) return precise(us, digits) + " us";
  return precise(us * 1e3, digits) + " ns";
}

function precise(value, digits) {
  if (value === 0) return "0";
  const places = Math.max(0, digits - 1 - Math.floor(Math.log10(Math.abs(value))));
  return value.toFixed(Math.min(places, 6));
}

function bytesText(count) {
  const size = Math.abs(count);
  if (size >= 2 ** 30) return (count / 2 ** 30).toFixed(2) + " GiB";
  if (size >= 2 ** 20) return (count / 2 ** 20).toFixed(1) + " MiB";
  return (count / 1024).toFixed(1) + " KiB";
}

function numberText(value) {
  if (Number.isInteger(value)) return value.toLocaleString("en-US");
  const size = Math.abs(value);
  if (size >= 1e12 || size < 1e-3) return value.toExponential(2);
  return size >= 1000 ? Math.round(value).toLocaleString("en-US") : precise(value, 4);
}

const SHOW = {
  text: (value) => shown(value),
  us: (value) => timeText(value),
  change: (value) => (value > 0 ? "+" : "") + timeText(value),
  bytes: bytesText,
  share: (value) => (100 * value).toFixed(1) + " %",
  number: numberText,
};

function cellText(value, kind) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return shown(value);
  return (SHOW[kind] || numberText)(value);
}

// Save a text as a file of the reader's.
function save(name, text, type) {
  const link = make("a", { href: URL.createObjectURL(new Blob([text], { type })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

function csvCell(value) {
  if (value === null || value === undefined) return "";
  let text = String(value);
  const formula = typeof value === "string" && /^[=+\-@\t\r]/.test(text) && isNaN(Number(text));
  if (formula) text = "'" + text; // spreadsheets would run it
  return /[",\n\r]/.test(text) ? '"' + text.replaceAll('"', '""') + '"' : text;
}

function csvText(columns, rows) {
  const units = { us: " (us)", change: " (us)", bytes: " (bytes)" };
  const names = columns.map((column) => csvCell(column.name + (units[column.kind] || "")));
  return [names, ...rows.map((row) => row.map(csvCell))].map((line) => line.join(",")).join("\n") + "\n";
}

// The theme: as the system has it, unless the reader turns it; canvases are drawn anew.
const themed = [];
const dark = matchMedia("(prefers-color-scheme: dark)");
let chosen = "";

function isDark() {
  return chosen ? chosen === "dark" : dark.matches;
}

function setTheme(name) {
  chosen = name;
  document.documentElement.dataset.theme = isDark() ? "dark" : "light";
  for (const redraw of themed) redraw();
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
}

const live = make("div", { "aria-live": "polite", class: "unseen" });

function announce(text) {
  live.textContent = text;
}
