"""Runs ``resize``: of a dimension, and of one axis of the tensors that a pattern binds."""

from __future__ import annotations

from dataclasses import replace

from irgraph.ir.graph import Graph
from irgraph.ir.op import Value
from irgraph.ir.tensor import Tensor
from irgraph.language.evaluate import NoValueError, evaluate
from irgraph.language.match import Match
from irgraph.language.moving import whole
from irgraph.language.report import Entry
from irgraph.language.select import Selected, match_scope
from irgraph.language.state import Frame, State, entry, entry_of, illegal, refusal
from irgraph.language.tree import Resize
from irgraph.language.values import counted, spell
from irgraph.text.diagnostics import Diagnostic, fail
from irgraph.verbs.refusal import RefusedError
from irgraph.verbs.resize import Axis, Resizing, resize

EXPRESSIONS = "every size that is an expression of it follows"
SHOWN = 5
"""Sizes that stayed which a warning lists."""

AGREE = "all ops agree on the sizes that follow"


def run_resize(statement: Resize, state: State, frame: Frame) -> None:
    """Give a dimension or an axis another size; every size that must follow does."""
    was = state.graph
    if statement.selection is not None:
        state.entries.append(_run_axes(statement, state, frame))
        _carry(frame, was, state.graph)
        return
    size = _checked(state.value(statement.size, frame), statement)
    before = state.graph.dims[statement.dimension]
    try:
        done = resize(state.graph, statement.dimension, size)
    except RefusedError as error:
        what = f"{statement.dimension} is not resized to {size}"
        raise illegal(refusal(error, what, statement.place, state.graph)) from None
    state.graph = done.graph
    _carry(frame, was, state.graph)
    made = replace(entry(statement, frame), done=f"{statement.dimension} is {size} (was {before})")
    state.entries.append(replace(made, legal=(EXPRESSIONS,), warnings=_kept(done, statement)))


def _kept(done: Resizing, statement: Resize) -> tuple[Diagnostic, ...]:
    """Return a warning for sizes that should have followed and did not."""
    if not done.kept:
        return ()
    notes = tuple(Diagnostic(told, severity="note") for told in done.kept[:SHOWN])
    more = f", of which {SHOWN} are shown" if len(done.kept) > SHOWN else ""
    message = f"{counted(len(done.kept), 'number')} of the capture stayed{more}"
    hint = "capture the step at this size to be sure"
    return (Diagnostic(message, statement.place, notes, hint, "warning"),)


def _carry(frame: Frame, was: Graph, now: Graph) -> None:
    """Let the names of ops stand for what has become of them."""
    if frame.handles and now is not was:
        became = {id(a): b for a, b in zip(was.walk(), now.walk(), strict=True)}
        for name, handle in frame.handles.items():
            ops = tuple(became.get(id(op), op) for op in handle.ops)
            frame.handles[name] = replace(handle, ops=ops)


def _run_axes(statement: Resize, state: State, frame: Frame) -> Entry:
    selection = statement.selection
    assert selection is not None
    selected = whole(selection, state, frame)
    made = entry_of(statement, frame, selected, selection)
    if not selected.matches:
        return made
    told: list[str] = []
    refused: list[Diagnostic] = []
    for (was, size), axes in _wanted(statement, selected, state, frame).items():
        first = f"{axes[0]}" if len(axes) == 1 else f"{axes[0]} and {len(axes) - 1} more"
        try:
            done = resize(state.graph, axes, size)
        except RefusedError as error:
            what = f"{first} is not resized to {size}"
            refused.append(refusal(error, what, statement.place, state.graph))
            if not selection.many:
                raise illegal(refused[-1]) from None
            continue
        state.graph = done.graph
        made = replace(made, warnings=(*made.warnings, *_kept(done, statement)))
        follow = counted(len(done.changed), "tensor")
        told.append(f"{first} is {size} (was {was}), {follow} changed")
    legal = (AGREE,) if told else ()
    return replace(made, done="; ".join(told), legal=legal, refused=tuple(refused))


def _wanted(
    statement: Resize, selected: Selected, state: State, frame: Frame
) -> dict[tuple[int, int], list[Axis]]:
    """Return the axes to resize by their size and the new one."""
    found: dict[tuple[int, int], list[Axis]] = {}
    for match in selected.matches:
        tensor = match.values[statement.operand]
        if not isinstance(tensor, Tensor):
            what = f"%{statement.operand} is {spell(tensor)}, not a tensor"
            raise fail(what, statement.place)
        if statement.axis >= tensor.rank:
            what = f"%{statement.operand} is %{tensor.name}, of rank {tensor.rank}"
            raise fail(f"{what}: it has no shape[{statement.axis}]", statement.place)
        size = _checked(_size(statement, selected, match, state, frame), statement)
        key = (int(tensor.shape[statement.axis]), size)
        axis = Axis(tensor.name, statement.axis)
        if axis not in found.setdefault(key, []):
            found[key].append(axis)
    return found


def _size(statement: Resize, selected: Selected, match: Match, state: State, frame: Frame) -> Value:
    """Return the new size, which may follow from what a match binds."""
    scope = match_scope(state.scope(frame), selected.index, match)
    try:
        return evaluate(statement.size, scope)
    except NoValueError as error:
        raise fail(str(error), statement.size.place) from None


def _checked(size: Value, statement: Resize) -> int:
    if isinstance(size, float) and size.is_integer():
        size = int(size)
    if isinstance(size, int) and not isinstance(size, bool) and size >= 1:
        return int(size)
    what = "a dimension" if statement.dimension else "an axis"
    raise fail(f"{what} needs a whole number above 0, not {spell(size)}", statement.size.place)
