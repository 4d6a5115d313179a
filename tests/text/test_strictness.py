"""What no reader takes, said with its place; and what only looks canonical."""

from __future__ import annotations

import pytest

from irgraph.text import IrgraphError, parse, print_graph
from irgraph.text.canonical import NotCanonicalError, read_canonical
from irgraph.text.parser import parse_any

HEAD = (
    'model "m" { format = 1  dims = {B = 8} }\n\ndevice @gpu0 "v100"\ninput %x : f32[B] in $b1\n\n'
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEAD.replace("B = 8", "B = 1, B = 2"), "the dimension B is there twice"),
        (HEAD.replace("B = 8", "B = 0"), "the dimension B must be at least 1"),
        (HEAD.replace("B = 8", f"B = {'9' * 30}"), "is too large"),
        (HEAD.replace("B = 8", f"B = {'9' * 5000}"), "not a number: '9999"),
        (HEAD.replace("format = 1", "format = -5"), "a whole number of at least 1"),
        (HEAD.replace("format = 1", "format = true"), "a whole number of at least 1"),
        (HEAD.replace("input", 'device @gpu0 "a"\ninput'), "the device @gpu0 is declared twice"),
        (HEAD.replace("input", "stream s @gpu0\nstream s @gpu0\ninput"), "stream s is declared"),
        (HEAD + "aten.f(%x, a = 1, a = 2)\n", "a is given twice"),
        (HEAD + "aten.f([%x, k = 1])\n", "unexpected '='"),
        (HEAD + 'aten.f(%x) from "\\ud800"\n', "lone surrogate"),
        (HEAD + "[] = aten.f(%x) : f32[4] in $b2\n", "needs a list of as many types"),
        (HEAD + "%y = aten.f(%x) : f32[4,] in $b2\n", "unexpected ']'"),
        (HEAD + "aten.f(%x) [t = 41..5us]\n", "unexpected"),
        (HEAD + "aten.f(k = " + "[" * 5000 + "]" * 5000 + ")\n", "nested too deeply"),
    ],
)
def test_refused(text: str, message: str) -> None:
    with pytest.raises(IrgraphError) as caught:
        parse(text, "x.ir")
    assert message in str(caught.value)
    assert "x.ir" in str(caught.value)


def test_nesting_has_a_limit() -> None:
    def nested(levels: int) -> str:
        opening = "".join(f'{"  " * i}"s"() {{\n' for i in range(levels))
        closing = "".join(f"{'  ' * i}}}\n" for i in reversed(range(levels)))
        return HEAD + opening + "  " * levels + "aten.relu_(%x!)\n" + closing

    assert print_graph(read_canonical(nested(90))) == nested(90)
    assert parse_any(nested(90)) == parse(nested(90))
    for levels in (120, 3000):
        with pytest.raises(IrgraphError, match=r"nested too deeply|more than 100 levels"):
            parse(nested(levels), "x.ir")


@pytest.mark.parametrize(
    "line",
    [
        "aten.f([%x, k = 1])",
        "%y%q = aten.f(%x) : f32[4] in $b2",
        "y = aten.f(%x) : f32[4] in $b2",
        "%é = aten.f(%x) : f32[4] in $b2",
        "_ = aten.f(%x) : nine",
        "aten.f(%x, )",
        "aten.f(%x, k = @)",
        "aten.f(%x) []",
        "aten.f(%x) [t = -1us]",
        "aten.f(%x) [t = 1zz]",
        "%y = aten.f(%x) : f32[;] in $b2",
    ],
)
def test_what_the_grammar_refuses_is_not_canonical_either(line: str) -> None:
    with pytest.raises(NotCanonicalError):
        read_canonical(HEAD + line + "\n")
    with pytest.raises(IrgraphError):
        parse(HEAD + line + "\n")
