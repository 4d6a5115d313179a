"""Recorded steps (the folder of ``irgraph record``)."""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec.structs import replace

from irgraph.capture.recording.folder import FIGURES
from irgraph.capture.recording.record import Recording
from irgraph.database.entry import Provenance, RecordEntry
from irgraph.diagnostics import SourceSpan, fail
from irgraph.diagnostics.json_keys import refuse_duplicate_keys
from irgraph.files import read_bytes
from irgraph.intake.privacy import TextFilter, software

MAX_TIME_US = 1e12
"""Maximum time of a step in microseconds: eleven days."""


def entries(path: str, text_filter: TextFilter, provenance: Provenance) -> list[RecordEntry]:
    """Return a recording's measured step.

    Raises ``IrgraphError`` if the folder is not a recording.
    """
    span = SourceSpan(str(Path(path) / FIGURES))
    if not Path(span.source).is_file():
        hint = "give a folder that `irgraph record` wrote"
        raise fail(f"the folder holds no {FIGURES}", SourceSpan(path), hint=hint)
    try:
        data = read_bytes(span.source)
        record = msgspec.json.decode(data, type=Recording)
        refuse_duplicate_keys(data)
    except (ValueError, RecursionError) as error:
        raise fail(f"no figures of a recording: {error}", span) from None
    if not all(0 <= time <= MAX_TIME_US for time in (record.step_time_us, *record.times_us)):
        raise fail(f"a time below 0 or above {MAX_TIME_US:g} us", span)
    row = {
        "workload": text_filter.free_text(record.target),
        "quantity": "step time",
        "unit": "us",
        "batch": record.batch,
        "device": text_filter.device(record.device),
        "measured": record.step_time_us,
        "profiled": record.profiled_us,
    }
    full_provenance = replace(
        provenance,
        card=provenance.card or text_filter.card(record.device_name),
        software=provenance.software or software({"torch": record.torch}, text_filter),
    )
    content = {"recording": row, "times_us": list(record.times_us)}
    omissions = [] if text_filter.everything else ["the program's name"]
    return [RecordEntry("steps", content, [row], full_provenance, tuple(omissions))]
