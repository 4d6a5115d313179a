"""``apply`` runs a pass."""

from __future__ import annotations

from dataclasses import dataclass

from irgraph.diagnostics import fail, suggestion
from irgraph.ir.op import Value
from irgraph.language.checking.checker import Checker
from irgraph.language.clauses import Call
from irgraph.language.expressions.kinds import ANY, EXAMPLES, PARAMETER_TYPES
from irgraph.language.expressions.values import spell
from irgraph.language.running.settle import run_block
from irgraph.language.running.state import Frame
from irgraph.language.statement import Statement


@dataclass(frozen=True)
class Apply(Statement):
    """``apply pass(...)``."""

    call: Call

    def __str__(self) -> str:
        return f"apply {self.call}"

    def check(self, check: Checker) -> None:
        """Check the arguments; an unknown pass has been reported before."""
        call = self.call
        if call.name not in check.passes:
            return
        parameter_by_name = {parameter.name: parameter for parameter in check.passes[call.name]}
        argument_names = [name for name, _ in call.arguments]
        for name, value in call.arguments:
            if name in parameter_by_name:
                check.argument(parameter_by_name[name], value)
            else:
                remedy = (
                    suggestion(name, parameter_by_name)
                    or f"; it has {', '.join(parameter_by_name) or 'none'}"
                )
                check.note(f"{call.name} has no parameter {name!r}{remedy}", value.place)
        for name in {name for name in argument_names if argument_names.count(name) > 1}:
            check.note(f"{name!r} is given twice", call.place)
        for parameter in parameter_by_name.values():
            if parameter.default is None and parameter.name not in argument_names:
                message = f"{call.name} needs an argument {parameter.name} of type {parameter.type}"
                example = EXAMPLES.get(PARAMETER_TYPES.get(parameter.type, ANY), "...")
                hint = f"as in {call.name}({parameter.name} = {example})"
                check.note(message, call.place, hint)

    def run(self, frame: Frame) -> None:
        """Run the pass, whose statements are alternatives: some of them need not match."""
        applied, entries = frame.state.passes[self.call.name], frame.state.entries
        start = len(entries)
        run_block(applied.body, Frame(frame.state, self._values(frame), caller=self.call.name))
        if any(entry.changed for entry in entries[start:]):
            entries[start:] = [entry.calmed() for entry in entries[start:]]

    def _values(self, frame: Frame) -> dict[str, Value]:
        """Return the values of the pass's parameters."""
        parameters = frame.state.passes[self.call.name].parameters
        values = {name: frame.value(value) for name, value in self.call.arguments}
        for parameter in parameters:
            if parameter.name not in values and parameter.default is not None:
                values[parameter.name] = Frame(frame.state).value(parameter.default)
        for parameter in parameters:
            value = values[parameter.name]
            if parameter.type == "int" and (not isinstance(value, int) or isinstance(value, bool)):
                message = f"{parameter.name!r} must be a whole number, not {spell(value)}"
                raise fail(message, self.call.place)
        return values
