// Builds the page.
const MAKERS = {
  headline: headlineNode, notes: notesNode, facts: factsNode, table: tableNode, tabs: tabsNode,
  slices: slicesNode, areas: areasNode, roof: roofNode, scatter: scatterNode, listing: listingNode,
};

function partNode(section) {
  return MAKERS[section.type](section);
}

function sectionNode(section) {
  if (!section.title) return partNode(section);
  const heading = section.id + "-title";
  return make("section", { id: section.id, "aria-labelledby": heading }, make("h2", { id: heading, text: section.title }),
    section.text ? make("p", { class: "about", text: section.text }) : null, partNode(section));
}

function headerNode() {
  const button = (text, click) => make("button", { type: "button", class: "plain", text, click });
  return make("header", {}, make("div", {}, make("h1", { text: data.title }), make("p", { class: "about", text: data.about })),
    make("div", { class: "tools" }, button("Light / dark", () => setTheme(isDark() ? "light" : "dark")), button("Print", () => window.print())));
}

function linksNode() {
  const titled = data.sections.filter((section) => section.title);
  const links = titled.map((section) => make("li", {}, make("a", { href: "#" + section.id, text: section.title })));
  return make("nav", { "aria-label": "Sections" }, make("ul", {}, links));
}

function footerNode() {
  const versions = Object.entries(data.versions).map(([name, version]) => `${name} ${version}`).join(", ");
  const copy = make("button", { type: "button", class: "plain", text: "Copy", click: () => {
    navigator.clipboard?.writeText(data.command).then(() => announce("copied"), () => announce("not copied"));
  } });
  return make("footer", {},
    data.command ? make("h2", { text: "How this was made" }) : null,
    data.command ? make("div", { class: "command" }, make("pre", { tabindex: "0", text: data.command }), copy) : null,
    make("p", { class: "quiet", text: versions + ". Charts: uPlot (MIT)." }));
}

document.getElementById("static").remove();
document.title = shown(data.title);
document.body.append(make("a", { class: "skip", href: "#content", text: "Skip to the report" }), headerNode(), linksNode(),
  make("main", { id: "content" }, data.sections.map(sectionNode)), footerNode(), live);
setTheme("");
dark.addEventListener("change", () => setTheme(chosen));
let before = "";
addEventListener("beforeprint", () => { before = chosen; setTheme("light"); });
addEventListener("afterprint", () => setTheme(before));
document.documentElement.dataset.ready = "yes";
