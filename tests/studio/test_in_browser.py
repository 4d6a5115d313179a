"""The studio as a reader has it: in Chromium, with mouse, keyboard, light and dark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pygments.lexers import get_lexer_by_name

import irgraph
import passes
from tests.browser import Browser, findings
from tests.studio.conftest import SMALL, served, studio
from tests.test_api import DLRM

pytestmark = pytest.mark.slow

APPLY = "button:text-is('Apply')"


@contextmanager
def opened(
    browser: Browser, graph: irgraph.Graph, folder: Path, passes: tuple[str, ...] = (), **how: Any
) -> Iterator[Any]:
    """Open a studio; all that it asks for must come from it, and nothing may go wrong."""
    with served(studio(graph, folder, passes)) as address:
        context = browser.chromium.new_context(
            **{"viewport": {"width": 1440, "height": 1100}, **how}
        )
        page = context.new_page()
        said: list[str] = []
        asked: list[str] = []
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(address)
        page.wait_for_selector("html[data-ready=yes]", timeout=30_000)
        try:
            yield page
            assert said == []
            assert asked and all(url.startswith(address) for url in asked), asked
        finally:
            context.close()


def tried(page: Any, text: str) -> None:
    """Write statements, and wait for what they would do."""
    page.evaluate("text => document.querySelector('.CodeMirror').CodeMirror.setValue(text)", text)
    page.wait_for_selector("html[data-tried=yes]", timeout=30_000)


def shown(page: Any, card: int) -> float:
    """Return a time of the page's head in microseconds."""
    value, unit = page.locator(".card .value").nth(card).inner_text().split()
    return float(value) * {"us": 1, "ms": 1e3, "s": 1e6}[unit]


def test_dlrm_is_edited_by_looking(browser: Browser, tmp_path: Path) -> None:
    graph = irgraph.load(DLRM)
    with opened(browser, graph, tmp_path) as page:
        page.click("role=tab[name=Passes]")
        page.click("text=fuse-embedding")
        page.wait_for_selector(".verdict.good")
        assert (
            page.inner_text(".CodeMirror-code").split("\n")[-1] == "apply fuse-embedding(least = 2)"
        )
        fused = irgraph.rewrite(graph, "fuse-embedding").graph
        times = [irgraph.predict(one).step_time for one in (graph, fused)]
        assert shown(page, 0) == pytest.approx(times[0], rel=1e-3)
        assert shown(page, 1) == pytest.approx(times[1], rel=1e-3)
        assert "batched_embedding_sgd" in page.inner_text("section:has(> #changes-title)")
        page.click("role=tab[name=Ops]")
        page.wait_for_selector(".row.removed")
        drawn = page.locator("#timeline canvas").screenshot()
        page.click(APPLY)
        page.wait_for_selector("button:has-text('Undo'):enabled")
        assert shown(page, 0) == pytest.approx(times[1], rel=1e-3)
        assert page.locator("#timeline canvas").screenshot() != drawn
        assert page.pdf()[:5] == b"%PDF-"
        page.click("text=Undo")
        page.wait_for_selector("button:has-text('Redo'):enabled")
        assert shown(page, 0) == pytest.approx(times[0], rel=1e-3)


def test_a_refusal_shows_its_reasons(browser: Browser, tmp_path: Path) -> None:
    with opened(browser, irgraph.parse(SMALL), tmp_path) as page:
        tried(page, "remove aten.relu")
        assert page.inner_text(".verdict") == "Refused: nothing changes."
        assert "aten.neg (%z) uses %y" in page.inner_text(".problem .problem")
        assert page.locator(".marked-error").count()
        assert page.is_disabled(APPLY)
        tried(page, "remove")
        assert page.inner_text(".verdict") == "This cannot be done as it is written."


def test_the_keyboard_is_enough(browser: Browser, tmp_path: Path) -> None:
    """From selecting ops to a saved model, without a mouse."""
    with opened(browser, irgraph.parse(SMALL), tmp_path) as page:
        keys = page.keyboard

        def reach(label: str) -> None:
            for _ in range(60):
                keys.press("Tab")
                name = "document.activeElement.ariaLabel || document.activeElement.textContent"
                if page.evaluate(name) == label:
                    return
            raise AssertionError(f"{label} is not reached")

        reach("Ops in launch order")
        keys.press("ArrowDown")
        keys.press("Enter")
        assert page.locator(".row[aria-selected=true]").count() == 1
        reach("Remove")
        keys.press("Enter")
        page.wait_for_selector(".verdict.bad")
        assert "remove aten.relu" in page.inner_text(".CodeMirror-code")
        keys.press("Control+a")
        keys.type("remove %y = aten.relu(%x) using %x f")
        page.wait_for_selector(".CodeMirror-hints")
        keys.press("Tab")
        keys.type(" %y")
        keys.press("Escape")
        page.wait_for_selector(".verdict.good")
        keys.press("Control+Enter")
        page.wait_for_selector("button:has-text('Undo'):enabled")
        reach("Save …")
        keys.press("Enter")
        page.wait_for_selector("dialog[open]")
        reach("Save")
        keys.press("Enter")
        page.wait_for_selector("text=Saved small-edited.irg and small-edited.ir.")
        assert len(list(irgraph.load(tmp_path / "small-edited.ir").walk())) == 2


PLANTED = "</script><script>window.planted=1</script><img src=x onerror='window.planted=1'>"

NAMES = f"""model "{PLANTED}" {{ format = 1  note = "{PLANTED}" }}

device @gpu0 "v100"
input %x "{PLANTED}" : f32[64, 8] in $x

"{PLANTED}"() {{
  %y = aten.relu(%x) : f32[64, 8] in $y in module "{PLANTED}" from "{PLANTED}"
}}
%z = aten.neg(%y) : f32[64, 8] in $z in module "{PLANTED}"
"""

PASS = f"""pass planted(word: string = "{PLANTED}")
  "{PLANTED}"
{{
  find found = many "{PLANTED}"
  remove many aten.neg where op.module == word
}}
"""


def test_planted_markup_does_nothing(browser: Browser, tmp_path: Path) -> None:
    """In every name that a model or a pass may have."""
    folder = tmp_path / "passes"
    folder.mkdir()
    (folder / "planted.irg").write_text(PASS)
    graph = irgraph.parse(NAMES, f"{PLANTED}.ir")
    with opened(browser, graph, tmp_path, (str(folder),)) as page:
        for text in ("apply planted", f'find x = "{PLANTED}"', f'remove "{PLANTED}"', PLANTED):
            tried(page, text)
        for tab in ("Passes", "Edits", "Ops"):
            page.click(f"role=tab[name={tab}]")
        tried(page, "apply planted")
        page.click(APPLY)
        page.wait_for_selector("button:has-text('Undo'):enabled")
        page.click(".row >> nth=0")
        page.click("text=Name them")
        page.wait_for_selector("html[data-tried=yes]")
        page.click("#timeline canvas", position={"x": 400, "y": 30})
        tried(page, "remove aten.relu within ")
        page.evaluate(
            "e = document.querySelector('.CodeMirror').CodeMirror; e.setCursor(0, 99); e.focus()"
        )
        page.keyboard.press("Control+Space")
        page.wait_for_selector(".CodeMirror-hints")
        page.click("text=Save …")
        assert page.title().startswith("</script>")
        assert page.evaluate("typeof window.planted") == "undefined"
        assert page.locator("img").count() == 0
        assert page.locator("script").count() == 3


def test_colours_are_those_of_the_lexer(browser: Browser, tmp_path: Path) -> None:
    """Every token of every pass has in the browser the kind that Pygments gives it."""
    lexer = get_lexer_by_name("irgraph")
    with opened(browser, irgraph.parse(SMALL), tmp_path) as page:
        for path in sorted(passes.files(()).values()):
            text = path.read_text(encoding="utf-8")
            found = page.evaluate(
                """text => { const e = document.querySelector('.CodeMirror').CodeMirror;
                e.setValue(text);
                return text.split('\\n').slice(0, -1).map((_, n) => e.getLineTokens(n, true)
                  .map(t => [t.string, t.type || ''])) }""",
                text,
            )
            seen = [token for line in found for token in line if token[0].strip()]
            kinds = [
                [word, "irg-" + str(kind)[6:].replace(".", "-").lower()]
                for kind, word in lexer.get_tokens(text)
                if word.strip()
            ]
            assert merged(seen) == merged(kinds), path.name


def merged(tokens: list[list[str]]) -> list[list[str]]:
    """Return tokens with neighbours of a kind as one, as the editor shows them."""
    found: list[list[str]] = []
    for word, kind in tokens:
        if found and found[-1][1] == kind:
            found[-1][0] += word
        else:
            found.append([word, kind])
    return [[word.replace(" ", ""), kind] for word, kind in found]


def test_a_thousand_ops_scroll(browser: Browser, tmp_path: Path) -> None:
    """Rows are drawn where they are looked at; all can be reached and selected."""
    lines = "".join(f"%y{n} = aten.relu(%y{n - 1}) : f32[8] in $y{n}\n" for n in range(1, 3001))
    head = 'model "long" { format = 1 }\n\ndevice @gpu0 "v100"\ninput %y0 : f32[8] in $y0\n\n'
    with opened(browser, irgraph.parse(head + lines), tmp_path) as page:
        assert page.locator(".row").count() < 100
        page.focus(".list")
        page.keyboard.press("End")
        page.keyboard.press("Enter")
        assert "%y3000 " in page.inner_text(".row.active")
        page.keyboard.press("Home")
        page.keyboard.press("Shift+End")
        assert "3000 selected" in page.inner_text(".ops .hint")
        page.fill(".ops input", "%y2999 ")
        assert page.inner_text(".ops .count") == "2 of 3000 ops"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_keeps_a_reader_out(browser: Browser, tmp_path: Path, scheme: str) -> None:
    """By axe: no serious finding, in any state of the page."""
    with opened(browser, irgraph.load(DLRM), tmp_path, color_scheme=scheme) as page:
        findings(page)
        tried(page, "apply fuse-embedding\n# a note\nremove many aten.relu(%x) where op.time > 3us")
        findings(page)
        tried(page, "apply fuse-embedding")
        page.click(APPLY)
        page.wait_for_selector("button:has-text('Undo'):enabled")
        for tab in ("Passes", "Edits", "Ops"):
            page.click(f"role=tab[name={tab}]")
            findings(page)
        page.click(".row >> nth=3")
        page.click("#timeline canvas", position={"x": 400, "y": 30})
        page.evaluate("document.querySelector('.CodeMirror').CodeMirror.focus()")
        page.keyboard.press("Control+Space")
        page.wait_for_selector(".CodeMirror-hints")
        findings(page)
        page.click("text=Save …")
        findings(page)
