"""Recorded steps (the folder of ``irgraph record``)."""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec.structs import replace

from irgraph.capture.recording.folder import FIGURES
from irgraph.capture.recording.record import Recording
from irgraph.database.entry import Provenance, RecordEntry
from irgraph.diagnostics import SourceSpan, fail
from irgraph.files import read_bytes
from irgraph.intake.privacy import TextFilter, software

MOST = 1e12
"""Microseconds that no step takes: eleven days."""


def entries(path: str, kept: TextFilter, provenance: Provenance) -> list[RecordEntry]:
    """Return a recording's measured step.

    Raises ``IrgraphError`` where the folder is no recording.
    """
    place = SourceSpan(str(Path(path) / FIGURES))
    if not Path(place.source).is_file():
        hint = "give a folder that `irgraph record` wrote"
        raise fail(f"the folder holds no {FIGURES}", SourceSpan(path), hint=hint)
    try:
        found = msgspec.json.decode(read_bytes(place.source), type=Recording)
    except (ValueError, RecursionError) as error:
        raise fail(f"no figures of a recording: {error}", place) from None
    if not all(0 <= time <= MOST for time in (found.step_time_us, *found.times_us)):
        raise fail(f"a time below 0 or above {MOST:g} us", place)
    row = {
        "workload": kept.free(found.target),
        "quantity": "step time",
        "unit": "us",
        "batch": found.batch,
        "device": kept.device(found.device),
        "measured": found.step_time_us,
        "profiled": found.profiled_us,
    }
    known = replace(
        provenance,
        card=provenance.card or kept.card(found.device_name),
        software=provenance.software or software({"torch": found.torch}, kept),
    )
    content = {"recording": row, "times_us": list(found.times_us)}
    said = [] if kept.everything else ["the program's name"]
    return [RecordEntry("steps", content, [row], known, tuple(said))]
