"""What is wrong with a script is said before anything runs, with its place: one test a message."""

from __future__ import annotations

from pathlib import Path

import pytest

from irgraph.language import load_script, run
from irgraph.text import IrgraphError
from tests.language.models import mlp, model

RELU = "fuse many %y = aten.relu(aten.addmm(%c, %x, %w)) into "
BAG = "fuse many %y, ... = aten.embedding_bag(%w, %i, %o, ..., mode = %m) "
BATCHED = "into [*%y] = irgraph.batched_embedding([*%w], [*%i], [*%o], mode = %m)"

MESSAGES = {
    # names and kinds
    "let a = 3 let a = 4": "1:11: error: 'a' is defined twice",
    "let lest = 3 let b = least": "1:22: error: least is not defined; did you mean 'lest'?",
    "let a = 20us + 3": "1:9: error: a time and a number cannot be added or subtracted",
    "let a = 3 + true": "1:13: error: a number is needed here, not a truth value",
    "let a = not 3": "1:13: error: a condition is needed here, not a number",
    "let a = -true": "1:9: error: a truth value has no opposite",
    "let a = [1, 2][true]": "1:16: error: an item's number is needed here, not a truth value",
    "let a = 3[0]": "1:9: error: a number has no items",
    "let a = 3.shape": "1:9: error: a number has no properties",
    "let a = op": "1:9: error: 'op' is known only where the pattern is a single op",
    "let a = count": "1:9: error: 'count' is known only behind 'having'",
    "let a = [*%x]": "1:10: error: *%x can stand only in a template",
    "let a = 3 ~ 4": "1:9: error: '~' compares texts with a glob",
    "let a = 20us < 4GiB": "1:9: error: a time cannot be compared with a size in bytes",
    # passes
    "apply fuse-embeding": (
        "1:7: error: no pass is called 'fuse-embeding'; did you mean 'fuse-embedding'?"
    ),
    'pass my-own "" {} apply my-on': (
        "1:25: error: no pass is called 'my-on'; did you mean 'my-own'?"
    ),
    'pass a "" { apply b } pass b "" { apply a } apply a': (
        "1:6: error: passes apply each other in a circle: a -> b -> a"
    ),
    'pass a "" {} pass a "" {} apply a': "1:19: error: the pass 'a' is there twice",
    'pass a(x: itn) "" {} apply a(x = 3)': (
        "1:8: error: unknown parameter type 'itn'; did you mean 'int'?"
    ),
    'pass a(x: matrix) "" {} apply a(x = 3)': (
        "1:8: error: unknown parameter type 'matrix'; there are int, float, bool, string, time,"
        " bytes, fraction, dtype, device, list"
    ),
    'pass a(x: int) "" {} apply a': "1:28: error: a needs x, of type int",
    'pass a(least: int = 1) "" {} apply a(last = 1)': (
        "1:45: error: a has no parameter 'last'; did you mean 'least'?"
    ),
    'pass a "" {} apply a(y = 1)': "1:26: error: a has no parameter 'y'; it has none",
    'pass a(x: int) "" {} apply a(x = true)': (
        "1:34: error: 'x' takes a value of type int, not a truth value"
    ),
    'pass a(x: int) "" {} apply a(x = 1.5)': "1:28: error: 'x' takes a whole number, not 1.5",
    'pass a(x: time = 3) "" {} apply a': (
        "1:18: error: 'x' takes a value of type time, not a number"
    ),
    'pass a(x: int, x: int) "" {} apply a(x = 1)': "1:16: error: two parameters are called 'x'",
    'pass a(x: int) "" {} apply a(x = 1, x = 2)': "1:28: error: 'x' is given twice",
    'pass a "" {} pass b "" {}': "1:6: error: nothing to run: apply one of a, b",
    # patterns
    "remove aten.rellu(%x)": "1:8: error: aten has no op aten.rellu; did you mean 'aten.relu'?",
    "remove aten.detach(%x, %y)": "1:24: error: aten.detach takes 1 argument at most",
    "remove aten.relu(..., %y)": (
        "1:23: error: what stands behind '...' or a name needs a name, as in mode = %m"
    ),
    "remove aten.relu(..., ...)": "1:23: error: '...' may stand only once in a list",
    "remove aten.sum(%x, dtpe = %d)": (
        "1:21: error: aten.sum has no argument 'dtpe'; did you mean 'dtype'?"
    ),
    "remove aten.sum(%x, dim = %d, dim = %e)": "1:31: error: 'dim' is given twice",
    "remove aten.detach(%x!)": (
        "1:20: error: aten.detach never writes its argument 'self' in place"
    ),
    "remove aten.cat([*%x, *%y], ...)": "1:17: error: a list can hold one '*' only",
    "remove a: aten.relu(%x) where b.phase == backward": "1:31: error: b is not defined",
    "remove { a: aten.relu(%x)  a: aten.sum(%y) }": "1:31: error: two ops bear the label 'a'",
    "remove aten.relu(%x) where %x.shpae[0] == 3": (
        "1:28: error: a tensor has no property .shpae; did you mean 'shape'?"
    ),
    "remove aten.relu(%x) where %x.zzz == 3": (
        "1:28: error: a tensor has no property .zzz; it has shape, dtype, nbytes, numel, rank,"
        " device, type, buffer, name"
    ),
    "remove aten.relu(%x) where op.phaze == backward": (
        "1:28: error: an op has no property .phaze; did you mean 'phase'?"
    ),
    "remove aten.relu(%xy) where %x.rank == 3": (
        "1:29: error: the pattern does not bind %x; did you mean 'xy'?"
    ),
    "remove aten.relu(%x) where %x.nbytes > 3": (
        "1:28: error: a size in bytes cannot be compared with a number"
    ),
    "remove aten.relu(%x) where op.time > 3us": "1:28: error: op.time needs a device",
    "remove aten.relu(%x) where %x.shape": ("1:28: error: a condition is needed here, not a list"),
    "remove aten.relu(%x) using %x for %z": "1:28: error: the pattern does not bind %z",
    "remove lookups": "1:8: error: 'lookups' names nothing found or made before",
    "find r = aten.t find r = aten.t": "1:17: error: 'r' is named twice",
    # templates
    RELU + "%y = irgraph.addmm_rel(%c, %x, %w)": (
        "1:60: error: no op is called irgraph.addmm_rel; did you mean 'irgraph.addmm_relu'?"
    ),
    RELU + "%y = irgraph.addmm_relu(%c, %x, beta = %w)": (
        "1:60: error: irgraph.addmm_relu: it needs an argument 'mat2'"
    ),
    RELU + "%y = irgraph.addmm_relu(%c, %x, %v, %w)": ("1:87: error: the pattern does not bind %v"),
    RELU + "%y = irgraph.addmm_relu(%c, %x, %w, %x, %x, %x)": (
        "1:99: error: irgraph.addmm_relu: it takes 5 arguments, not 6"
    ),
    RELU + "%y = irgraph.addmm_relu(%c, %x, [%w])": (
        "1:87: error: irgraph.addmm_relu: 'mat2' is a single tensor, not a list"
    ),
    RELU + "%y = irgraph.addmm_relu(%c, %x, %w!)": (
        "1:87: error: irgraph.addmm_relu: it does not write 'mat2' in place: drop the '!'"
    ),
    RELU + "aten.add_(%x, %w, alpha = %c)": (
        "1:65: error: aten.add_: it writes 'self' in place: mark it with '!'"
    ),
    RELU + "%y = irgraph.addmm_relu(%c, %x, %w, bta = 1)": (
        "1:91: error: irgraph.addmm_relu: it has no argument 'bta'; did you mean 'beta'?"
    ),
    RELU + "%y = irgraph.addmm_relu(%c, %x, %w, mat2 = 1)": (
        "1:91: error: irgraph.addmm_relu: 'mat2' is given twice"
    ),
    RELU + "%y, %c = irgraph.addmm_relu(%c, %x, %w)": (
        "1:55: error: irgraph.addmm_relu: it has 1 result, not 2"
    ),
    RELU + "[%y] = irgraph.addmm_relu(%c, %x, %w)": (
        "1:55: error: irgraph.addmm_relu: its result is a single tensor"
    ),
    RELU + "... = irgraph.addmm_relu(%c, %x, %w)": "1:55: error: unexpected '...'; expected",
    BAG + "into %y = irgraph.batched_embedding([*%w], [*%i], [*%o], mode = %m)": (
        "1:73: error: irgraph.batched_embedding: its result is a list: write [%y]"
    ),
    # fuse
    RELU + "{ %y = aten.mm(%x, %w)  aten.relu_(%c!) }": (
        "1:55: error: fuse makes one op; several need 'replace'"
    ),
    'fuse module "bot" into %y = aten.relu(%x)': (
        "1:6: error: fuse needs a pattern that names what the new op takes"
    ),
    RELU.replace("into", "group by %w.dtype into") + "%y = irgraph.addmm_relu(%c, %x, %w)": (
        "1:73: error: a group becomes one op: take its columns, as in [*%w]"
    ),
    BAG.replace("many ", "") + "group by %m " + BATCHED: (
        "1:72: error: 'group by' needs 'many': one match makes no group"
    ),
    BAG.replace("many ", "") + BATCHED: (
        "1:68: error: '*' takes all matches of a group: write 'many'"
    ),
    BAG + "group by %m having %w.rank > 1 " + BATCHED: (
        "1:87: error: %w differs within a group; 'having' knows count and the keys (%m)"
    ),
    BAG + "into [*%y] = irgraph.batched_embedding([*%w], [*%i], [*%o])": (
        "1:6: error: %m is bound and never used; write _ where it does not matter"
    ),
    # replace, insert
    "replace aten.t(%x) with { %y = aten.t(%q) }": "1:39: error: the pattern does not bind %q",
    "replace aten.t(%x) with { %y = aten.t(%x) %z = aten.t(%yy) }": (
        "1:55: error: the pattern does not bind %yy; did you mean 'y'?"
    ),
    "replace many aten.t(%x) with aten._foreach_neg_([*%x!])": (
        "1:50: error: '*' takes all matches of a group: only 'fuse' makes groups"
    ),
    "insert %x = aten.neg(%x) after aten.t(%x)": (
        "1:8: error: %x is there already; give what is new a name of its own"
    ),
    "insert %z = aten.neg(%x) after first many aten.t(%x)": (
        "1:26: error: 'first' picks one match: drop 'many'"
    ),
    "insert %z = aten.neg(%x) after aten.t(%x) using %zz for %x": (
        "1:49: error: nothing binds %zz; did you mean 'z'?"
    ),
    # what is not there yet
    # reorder, parallelize
    "parallelize aten.t, aten.mm over 2us streams": (
        "1:34: error: a number of streams is needed, not a time"
    ),
    "parallelize aten.t, aten.mm over 1 streams": (
        "1:34: error: a number of streams from 2 to 128 is needed, not 1"
    ),
    "reorder aten.t before last many aten.mm": "1:16: error: 'last' picks one match: drop 'many'",
    # cast
    "cast aten.mm to 3": "1:17: error: an element type is needed here, not a number",
    "cast aten.mm to tf32": ("1:17: error: ops can be cast to f64, f32, f16, bf16, not to tf32"),
    "cast %w of aten.mm(_, %w) to i8 scaled per row": (
        "1:6: error: 'scaled per' is not available yet"
    ),
    "cast %w of aten.mm(_, %w) to f16": "1:6: error: 'cast' of an operand is not available yet",
    "shard aten.mm over [@gpu0] by table": "1:1: error: 'shard' is not available yet",
    "place aten.mm in host": "1:1: error: 'place' is not available yet",
    # target
    "target 3": "1:8: error: a device's name is needed here, not a number",
    "resize %w.shape[0] of aten.mm(%w, _) = 3": (
        "1:1: error: resize of one axis is not available yet"
    ),
    # resize
    "resize BB = 3": "1:1: error: the model has no dimension 'BB'; did you mean 'B'?",
    "resize B = 10us": "1:12: error: a size is a number, not a time",
    "resize B = 0": "1:12: error: a dimension needs a whole number above 0, not 0",
    "let a = 2 let b = [a][0] * 1e299 * 10": "1:19: error: [a][0] * 1e+299 * 10 is too large",
    "let a = 1e300": "1:9: error: a number below 1e300 is needed here, not 1e300",
    "let op = 3": "1:1: error: 'op' is no free name: conditions use it",
    'pass a(count: int) "" {}': "1:8: error: 'count' is no free name: conditions use it",
    "remove op: aten.t(_)": "1:12: error: 'op' is no free name: conditions use it",
    "remove aten.*a*b*c*d": "1:8: error: an op's name can hold 3 '*' at most",
    "repeat at most 1001 { }": "1:1: error: repeat at most 1000 times",
    "repeat at most 2 { find r = aten.t } expect 1 r": (
        "1:47: error: 'r' names nothing found or made before"
    ),
    'remove aten.t within " "': "1:22: error: name a module or a label",
    'remove module ""': "1:15: error: name a module",
    'remove aten.t assuming ""': "1:24: error: an assumption needs a reason",
    "let a = [1][4]": "1:9: error: [1] has 1 item, none at 4",
}


@pytest.mark.parametrize(
    "text", MESSAGES, ids=[m.partition("error: ")[2] for m in MESSAGES.values()]
)
def test_a_wrong_script_says_what_and_where(text: str) -> None:
    with pytest.raises(IrgraphError) as caught:
        run(load_script(text, "s.irg"), mlp())
    assert str(caught.value).splitlines()[0].startswith(f"s.irg:{MESSAGES[text]}")
    assert caught.value.exit_code == 4


HINTS = {
    "let a = op": "label the one that is meant, as in b: aten.relu(...), and ask for b.phase",
    "remove aten.relu(%x) where op.time > 3": "write a time, as in 20us",
    "remove aten.relu(%x) where op.time > 3us": "choose one, as in --device v100",
    'pass a(x: int) "" {} apply a(x = true)': "write one as in 4",
    RELU + "%y = my.op(%c, %x, %w)": (
        'declare it in the model: schema "my::op(Tensor x) -> Tensor"'
    ),
}


@pytest.mark.parametrize("text", HINTS)
def test_errors_say_what_to_do(text: str) -> None:
    with pytest.raises(IrgraphError) as caught:
        run(load_script(text), mlp())
    assert caught.value.diagnostics[0].hint == HINTS[text]


def test_all_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(IrgraphError) as caught:
        run(load_script("let a = b\nremove aten.rellu(%x)\ntarget 3\nlet a = 4"), mlp())
    assert [d.place.line for d in caught.value.diagnostics if d.place] == [1, 2, 3, 4]


def test_nothing_runs_where_a_later_line_is_wrong() -> None:
    with pytest.raises(IrgraphError, match=r"3:8: error"):
        run(load_script("remove aten.relu_(%h!)\n\ntarget 3"), mlp())


def test_what_is_wrong_in_a_pass_that_is_not_applied_is_said_too() -> None:
    with pytest.raises(IrgraphError, match=r"no property \.shpae"):
        run(load_script('pass a "" { find r = aten.t(%x) where %x.shpae == 1 }\nlet b = 1'), mlp())


def test_names_given_twice_show_both_places() -> None:
    with pytest.raises(IrgraphError) as caught:
        run(load_script("find r = aten.t\nfind r = aten.mm"), mlp())
    (note,) = caught.value.diagnostics[0].notes
    assert str(note.place) == "-e:1:1"


def test_schemas_that_the_model_declares_are_known() -> None:
    graph = model(
        "input %x : f32[B] in $x\n%y = my.twice(%x) : f32[B] in $y\n",
        ["my::twice(Tensor x) -> Tensor"],
    )
    outcome = run(load_script("fuse %y = my.twice(%x) into %y = my.twice(%x)"), graph)
    assert outcome.report.made == 1


def test_only_a_pass_takes_parameters() -> None:
    with pytest.raises(IrgraphError, match="only a pass takes parameters") as caught:
        run(load_script("let a = 1"), mlp(), {"n": 3})
    assert caught.value.exit_code == 2


def test_a_library_file_holds_one_pass_of_its_name(tmp_path: Path) -> None:
    (tmp_path / "mine.irg").write_text('pass other "Another." {\n}\n')
    with pytest.raises(IrgraphError, match="this one should hold 'mine'"):
        run(load_script("apply mine"), mlp(), paths=[tmp_path])


def test_a_pass_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    (tmp_path / "mine.irg").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(IrgraphError, match="the pass 'mine' cannot be read"):
        run(load_script("apply mine"), mlp(), paths=[tmp_path])


def test_an_error_in_a_library_file_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "mine.irg").write_text('pass mine "Mine." { remov aten.t }')
    with pytest.raises(IrgraphError, match=r"mine\.irg:1:21: error: unexpected 'remov'"):
        run(load_script("apply mine"), mlp(), paths=[tmp_path])
