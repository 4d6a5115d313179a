"""Settings that list tensors and how each is built before any step: ``a = …; b = …``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from msgspec import Struct
from msgspec.structs import replace

from irgraph.diagnostics import IrgraphError, SourceSpan, fail
from irgraph.ir.graph import Graph

_BETWEEN = "; "


class ListSetting(Struct, frozen=True):
    """One such setting.

    Attributes:
        name: name of the setting, and the verb in messages: ``prepared``, ``expanded``.
        item: pattern of an item.
        example: an item, for hints.
    """

    name: str
    item: re.Pattern[str]
    example: str

    def read(self, graph: Graph) -> Iterator[re.Match[str]]:
        """Yield the matches of a model's items; raise ``IrgraphError`` at an invalid item."""
        text = str(graph.settings.get(self.name, ""))
        for part in text.split(_BETWEEN) if text else ():
            match = self.item.fullmatch(part)
            if match is None:
                raise self.unread(part, graph)
            yield match

    def unread(self, part: str, graph: Graph) -> IrgraphError:
        """Return the error about an item that cannot be read."""
        message = f"cannot read what is {self.name}: {part!r}"
        return fail(message, place_of(graph), hint=f"as in: {self.example}")

    def write(self, graph: Graph, items: Iterable[object]) -> Graph:
        """Return a graph that lists these items, and no others."""
        text = _BETWEEN.join(map(str, items))
        return replace(graph, settings={**graph.settings, self.name: text}) if text else graph


def place_of(graph: Graph) -> SourceSpan:
    """Return the file of a graph, or its name."""
    return SourceSpan(graph.source or graph.name)
