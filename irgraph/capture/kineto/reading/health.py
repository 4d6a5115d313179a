"""Report of the findings while a trace is read: codes, counts, and whether it needed repairs."""

from __future__ import annotations

from dataclasses import dataclass, field

from irgraph.diagnostics import SourceSpan, fail

NOTE, REPAIR = "note", "repair"

MAX_MINOR_SHARE = 0.001
"""Maximum share of the time of the device or the host that a minor repair concerns."""

CODES: dict[str, tuple[str, str]] = {
    "K01": (REPAIR, "the file is cut off: what was complete is kept"),
    "K03": (NOTE, "the container is not what the name says"),
    "K04": (REPAIR, "events with broken bytes, mended or dropped"),
    "K05": (NOTE, "events of kinds that no analysis needs, not kept"),
    "K06": (NOTE, "no profiler steps"),
    "K07": (NOTE, "unit of times"),
    "K08": (NOTE, "times with fractions of a microsecond, read from their digits"),
    "K09": (REPAIR, "events with impossible times or values"),
    "K10": (NOTE, "events of zero duration, kept"),
    "K11": (REPAIR, "host events that overlap their neighbour in part, cut at its end"),
    "K12": (REPAIR, "kernels that overlap on one stream by over 1 us"),
    "K13": (REPAIR, "device events before their launch"),
    "K14": (REPAIR, "device events without a launch (orphans)"),
    "K15": (NOTE, "launches that started several device events (graphs)"),
    "K16": (REPAIR, "exact copies of events, dropped"),
    "K17": (REPAIR, "events of unknown categories, sorted by their ids"),
    "K18": (NOTE, "categories spelled as in traces of 2021"),
    "K19": (NOTE, "no synchronisation records: waits are inferred from runtime calls"),
    "K20": (NOTE, "no operand shapes"),
    "K24": (NOTE, "other host threads than main and backward"),
    "K25": (NOTE, "records of the profiler's own work, left out of all statistics"),
    "K27": (NOTE, "no device events: the host alone was recorded"),
    "K29": (REPAIR, "launches that share a correlation with another call"),
    "K30": (REPAIR, "steps whose marks seem to be missing"),
    "K31": (REPAIR, "steps left out, as the trace is too large for the memory"),
    "K32": (NOTE, "steps left out, as others were asked for"),
    "K33": (NOTE, "events of categories that were left out"),
    "K34": (REPAIR, "launches whose device work is not in the file"),
    "K35": (REPAIR, "device time outside the steps, in microseconds"),
    "K36": (REPAIR, "records of the host that the file numbers and does not hold"),
    "K37": (REPAIR, "microseconds of recording without a record of the host, after the steps"),
    "K39": (REPAIR, "events with a field twice, of which the last counts"),
    "K38": (REPAIR, "steps whose operators or runtime calls are gone"),
    "K40": (NOTE, "a process of a file with several, read as one rank"),
    "K41": (REPAIR, "processes that cannot be told apart"),
}
"""Severity and meaning of every finding; ``docs/traces.md`` describes how each is handled."""


@dataclass(slots=True)
class Health:
    """Findings about one trace.

    Attributes:
        source: the file, for messages.
        counts: number of affected events, by code.
        details: further description, by code.
        minor: codes of repairs that change no figure by more than ``MAX_MINOR_SHARE``.
    """

    source: str
    counts: dict[str, int] = field(default_factory=dict)
    details: dict[str, str] = field(default_factory=dict)
    minor: set[str] = field(default_factory=set)

    def add(self, code: str, count: int = 1, detail: str = "", *, is_minor: bool = False) -> None:
        """Count a finding; later details of the same code are ignored.

        A repair is minor if every finding of its code is.
        """
        if count <= 0:
            return
        if is_minor and code not in self.counts:
            self.minor.add(code)
        elif not is_minor:
            self.minor.discard(code)
        self.counts[code] = self.counts.get(code, 0) + count
        if detail:
            self.details.setdefault(code, detail)

    def severity(self, code: str) -> str:
        """Return the severity of a finding: a note if no figure is in doubt."""
        return NOTE if code in self.minor else CODES[code][0]

    @property
    def repaired(self) -> bool:
        """Whether anything was repaired, dropped or guessed that puts a figure in doubt."""
        return any(self.severity(code) == REPAIR for code in self.counts)

    @property
    def exit_code(self) -> int:
        """Return 3 if the trace was repaired, 0 if it was clean."""
        return 3 if self.repaired else 0

    def demand_clean(self) -> None:
        """Raise ``IrgraphError`` (exit code 4) with the report if the trace needs repairs."""
        if self.repaired:
            message = "the trace needs repairs:\n" + "\n".join(self.lines())
            raise fail(message, SourceSpan(self.source))

    def rows(self) -> list[dict[str, str | int]]:
        """Return one row for each finding, repairs first."""
        order = sorted(self.counts, key=lambda code: (self.severity(code) != REPAIR, code))
        return [
            {
                "code": code,
                "severity": self.severity(code),
                "count": self.counts[code],
                "meaning": CODES[code][1],
                "detail": self.details.get(code, ""),
            }
            for code in order
        ]

    def repairs(self) -> tuple[str, ...]:
        """Return the report as lines of text if anything was repaired."""
        return tuple(self.lines()) if self.repaired else ()

    def reasons(self) -> list[str]:
        """Return the repairs, dropped events and missing records as caveats of figures."""
        return [
            f"{self.source}: {row['code']}, {row['count']} {row['meaning']}"
            + (f" ({row['detail']})" if row["detail"] else "")
            for row in self.rows()
            if row["severity"] == REPAIR
        ]

    def lines(self) -> list[str]:
        """Return the report as lines of text, at most one screen."""
        rows = self.rows()
        if not rows:
            return [f"{self.source}: nothing to report"]
        text = [
            f"{row['code']} {row['severity']:<6} {row['count']:>8}  {row['meaning']}"
            + (f": {row['detail']}" if row["detail"] else "")
            for row in rows
        ]
        return [f"{self.source}: {'usable with repairs' if self.repaired else 'clean'}", *text]
