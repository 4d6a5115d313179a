"""Search spaces: the variants of a step, their figures and their scripts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import field

from irgraph.diagnostics import SourceSpan, fail
from irgraph.diagnostics.json_keys import refuse_duplicate_keys
from irgraph.ir.graph import Graph
from irgraph.ir.resize import unresized_warnings
from irgraph.manage.run import find_pass
from irgraph.overheads.default_host import default_host_note, host_of_step
from irgraph.predict.options import PredictOptions
from irgraph.predict.prediction import Prediction
from irgraph.sweep.grid import file_digest
from irgraph.text.printer import print_graph
from irgraph.tuning.axes import Axis, Choice, Point, check_point, condition, every_point, sort_axes
from irgraph.tuning.definition import SpaceDefinition
from irgraph.tuning.figures import PointFigures, Pricing
from irgraph.tuning.limits import limit, limit_text
from irgraph.tuning.script import calls_of, script_of

FORMAT = 1
"""Version of a space's JSON."""


class SearchSpace(SpaceDefinition, frozen=True, eq=False):
    """Search space of a step's variants, with their limits.

    ``search_space`` builds it. A point is a plain ``dict`` of choices by the names of axes.
    """

    _pricing_cache: list[Pricing] = field(default_factory=list)

    @property
    def most(self) -> int:
        """Maximum number of points, reached if every axis is active in every point."""
        count = 1
        for axis in self.axes:
            count *= len(axis.choices)
        return count

    def points(self) -> Iterator[dict[str, Choice]]:
        """Yield every point once, as plain values; the last axis changes fastest."""
        return every_point(self.axes)

    def ask(self, choose: Callable[[Axis], Choice]) -> dict[str, Choice]:
        """Return a point by calling ``choose`` for each active axis.

        Any search can use it: ``random.choice(axis.choices)`` is a random search.
        Raises ``IrgraphError`` (exit code 2) if a value is no choice of its axis.
        """
        point: dict[str, Choice] = {}
        for axis in self.axes:
            if axis.takes_part(point):
                point[axis.name] = choose(axis)
        check_point(self.axes, point)
        return point

    def figures(self, points: Sequence[Point]) -> list[PointFigures]:
        """Return the predicted figures of points, with the same times as ``predict``.

        Points with the same passes are priced in one batch, and each pass is applied once; earlier
        figures are cached. The figures of an impossible variant contain the reason.
        Raises ``IrgraphError`` (exit code 2) for an invalid point.
        """
        for point in points:
            check_point(self.axes, point)
        return _pricing(self).figures(points)

    def variant(self, point: Point) -> Graph:
        """Return the step of a point, at the captured sizes.

        Raises ``IrgraphError`` if a pass cannot be applied.
        """
        check_point(self.axes, point)
        structure = _pricing(self).structures.variant(calls_of(self, point))
        if structure.refused:
            raise fail(structure.refused)
        return structure.graph

    def prediction(self, point: Point) -> Prediction:
        """Return the prediction of a variant, with the same step time as in ``figures``.

        Raises ``IrgraphError`` if a pass cannot be applied.
        """
        check_point(self.axes, point)
        return _pricing(self).prediction(point)

    def script(self, point: Point, said: str = "") -> str:
        """Return the script of a variant, for ``irgraph opt -s`` and ``run_script``.

        Its comments contain ``said``, if anything, and the device, host and ranks of the point.
        """
        check_point(self.axes, point)
        return script_of(self, point, said)

    def explain(self) -> str:
        """Return a text with the axes, the sources of their choices, limits and omitted passes."""
        rows = [
            f"{axis.name}: {axis}{_condition_suffix(axis)}\n    {axis.why}" for axis in self.axes
        ]
        rows += [f"{name}: left out\n    {reason}" for name, reason in self.left_out.items()]
        rows += [f"limit: {name} {limit_text(name, bound)}" for name, bound in self.limits.items()]
        axes = [axis for axis in self.axes if axis.kind == "size"]
        sizes = [{axis.name: int(size)} for axis in axes for size in axis.choices]
        rows += [f"warning: {line}" for line in unresized_warnings(self.graph, *sizes)]
        tables = [host_of_step(n, self.graph, self.options.software) for n in self.hosts]
        rows += [f"warning: {note}" for note in filter(None, map(default_host_note, tables))]
        return "\n".join([*rows, f"at most {self.most:,} points"])

    @property
    def hosts(self) -> tuple[str, ...]:
        """Names of the host tables to choose from."""
        return tuple(
            str(name) for axis in self.axes if axis.name == "host" for name in axis.choices
        )

    def to_json(self) -> str:
        """Return the space as JSON text, with the hash of the step instead of the step."""
        record: dict[str, Any] = {"format": FORMAT, "model": model_hash(self.graph)}
        for name in JSON_FIELDS:
            record[name] = msgspec.to_builtins(getattr(self, name))
        return msgspec.json.format(msgspec.json.encode(record), indent=1).decode() + "\n"

    @classmethod
    def from_json(cls, text: str, graph: Graph, source: str = "space") -> SearchSpace:
        """Return the space of a text of ``to_json``, for the same step.

        Raises ``IrgraphError`` if the text is no space, or the space of another step.
        """
        try:
            record = msgspec.json.decode(text)
            refuse_duplicate_keys(text)
            fields = {
                name: msgspec.convert(record[name], kind) for name, kind in JSON_FIELDS.items()
            }
            version, model = record["format"], record["model"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise fail(f"not a search space: {error}", SourceSpan(source)) from None
        if version != FORMAT:
            raise fail(f"format {version} of search spaces is not {FORMAT}", SourceSpan(source))
        if model != model_hash(graph):
            raise fail("the search space is of another model", SourceSpan(source))
        limits = {
            name: bound if isinstance(bound, float) else limit(name, bound)
            for name, bound in fields.pop("limits").items()
        }
        return cls(graph, sort_axes(fields.pop("axes")), limits, **fields)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of everything that figures depend on, except for the version of irgraph.

        It does not include the content of records in a database.
        """
        choice_texts = [str(choice) for axis in self.axes for choice in axis.choices]
        files = {name: file_digest(name) for name in (*choice_texts, *self.options.weights)}
        passes = {name: find_pass(name, self.pass_path).text for name in self.passes}
        content = self.to_json().encode() + msgspec.json.encode([files, passes])
        return hashlib.sha256(content).hexdigest()


JSON_FIELDS: Mapping[str, Any] = {
    "axes": tuple[Axis, ...],
    "limits": dict[str, float | str],
    "prices": dict[str, float],
    "samples": str,
    "options": PredictOptions,
    "passes": tuple[str, ...],
    "pass_path": tuple[str, ...],
    "left_out": dict[str, str],
}
"""Fields of the JSON form, with their types."""


def _pricing(space: SearchSpace) -> Pricing:
    """Return the pricing of a space, with its cached structures and figures."""
    if not space._pricing_cache:
        space._pricing_cache.append(Pricing(space))
    return space._pricing_cache[0]


def model_hash(graph: Graph) -> str:
    """Return the SHA-256 of a step's text: 64 hexadecimal digits."""
    return hashlib.sha256(print_graph(graph).encode()).hexdigest()


def _condition_suffix(axis: Axis) -> str:
    return f", where {condition(axis)}" if axis.when else ""
