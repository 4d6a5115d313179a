"""Look-up of device sheets: shipped ones, those of installed packages, and files."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import msgspec

from costmodels.devices.reading import read_sheet
from costmodels.devices.sheet import LOCKED, DeviceSheet, Figure
from irgraph.diagnostics import fail, suggestion
from irgraph.files import read_input
from irgraph.plugins import plugins

PAPER = "v100@1297"
"""The paper's card, whose clock the benchmark scripts of owensgroup/ml_perf_model lock."""

GROUP = "irgraph.devices"
"""Group of the entry points that name packages with more sheets in their folders."""


def list_devices() -> tuple[str, ...]:
    """Return the names of the shipped and installed sheets, sorted."""
    return tuple(sorted(_sheets()))


def recorded_sheet(card: str) -> DeviceSheet | None:
    """Return a card's own sheet by the name of its driver, not the sheet of another variant."""
    words = card.split()
    name_by_alias = _names_by_alias()
    tails = (_normalized("".join(words[start:])) for start in range(len(words)))
    return next((_sheets()[name_by_alias[tail]] for tail in tails if tail in name_by_alias), None)


def sheet_of_card(card: str) -> str:
    """Return the name of the sheet that prices a card: its own, or else its model's.

    Return ``""`` if none is known.
    """
    sheet = recorded_sheet(card)
    return sheet.name if sheet is not None else _names_by_alias().get(_normalized(_model(card)), "")


def same_model(card: str, other: str) -> bool:
    """Return whether two names of cards are of one model, such as V100, in any variant."""
    return _model(card) == _model(other)


def _model(card: str) -> str:
    match = _MODEL.search(card.upper().replace("-", " "))
    return match[0] if match else card


_MODEL = re.compile(r"\b(PRO \d{4}|[A-Z]{1,2}\d{1,3}[A-Z]?|\d{4}( TI| SUPER)?|TITAN \w+)\b")


def load_device(name_or_path: str | Path) -> DeviceSheet:
    """Return a sheet by name or alias, or a user's own sheet from a ``.json`` file.

    Comparison of names ignores case, ``-``, ``_`` and spaces. ``NAME@MHZ`` is the card with a
    locked clock of its multiprocessors. Raises ``IrgraphError`` for an unknown name (with the
    nearest one), an unusable file (with the invalid field), or a clock above the boost clock.
    """
    text = str(name_or_path)
    match = _LOCKED.fullmatch(text)
    if match is not None and LOCKED not in match[1]:
        return _at_clock(load_device(match[1]), float(match[2]))
    if text.endswith(".json") or "/" in text:
        return _read(Path(text), text)
    alias = _normalized(text)
    name_by_alias = _names_by_alias()
    if alias in name_by_alias:
        return _sheets()[name_by_alias[alias]]
    guess = suggestion(alias, (other for other in name_by_alias if other[:1] == alias[:1]))
    if guess:
        guess = f"; did you mean {name_by_alias[guess.split(chr(39))[1]]!r}?"
    raise fail(
        f"no device sheet named {text!r}{guess}",
        hint="`irgraph devices` lists them; a path to a .json file of your own works too",
        exit_code=2,
    )


_LOCKED = re.compile(rf"(.+){LOCKED}(\d+(?:\.\d+)?)")


MIN_MHZ = 100
"""Minimum locked clock of a card, in MHz."""


def _at_clock(sheet: DeviceSheet, mhz: float) -> DeviceSheet:
    """Return a card with a locked clock: its peaks scale with it, its memory does not."""
    boost = sheet.clock_mhz.datasheet or 0.0
    if not MIN_MHZ <= mhz <= boost:
        limits = f"between {MIN_MHZ} MHz and its boost clock of {boost:g}"
        message = f"{sheet.name} cannot run at {mhz:g} MHz: it runs {limits}"
        raise fail(message, hint=f"leave {LOCKED}{mhz:g} out for stock clocks", exit_code=2)
    clock = msgspec.structs.replace(sheet.clock_mhz, measured=mhz)
    return msgspec.structs.replace(sheet, name=f"{sheet.card}{LOCKED}{mhz:g}", clock_mhz=clock)


def device_values() -> list[dict[str, object]]:
    """Return every sheet as plain values, with figures and sources, for programs."""
    return [msgspec.to_builtins(sheet) for _, sheet in sorted(_sheets().items())]


def device_rows() -> list[dict[str, str]]:
    """Return one row of texts for each sheet, for a table of devices."""
    return [_row(sheet) for _, sheet in sorted(_sheets().items())]


def _row(sheet: DeviceSheet) -> dict[str, str]:
    return {
        "name": sheet.name,
        "aliases": ", ".join(sheet.aliases),
        "SMs": str(sheet.sms),
        "clock MHz": _pair(sheet.clock_mhz),
        "fp32 GFLOP/s": _pair(sheet.fp32_gflops),
        "DRAM GB/s": _pair(sheet.dram_gbs),
        "L2 GB/s": _pair(sheet.l2_gbs),
        "pinned GB/s": _pair(sheet.pinned_gbs),
        "memory GiB": f"{sheet.memory_bytes / 2**30:.0f}",
        "tf32": "on" if sheet.tf32 else "off",
    }


def _pair(figure: Figure) -> str:
    """Return the datasheet's and the measured value as one text."""
    datasheet = "-" if figure.datasheet is None else f"{figure.datasheet:g}"
    measured = "-" if figure.measured is None else f"{figure.measured:g}"
    return f"{datasheet} / {measured}"


@cache
def _names_by_alias() -> dict[str, str]:
    """Return the names of sheets by their normalised names and aliases."""
    name_by_alias = {_normalized(name): name for name in _sheets()}
    for sheet in _sheets().values():
        name_by_alias |= {_normalized(alias): sheet.name for alias in sheet.aliases}
    return name_by_alias


@cache
def _sheets() -> dict[str, DeviceSheet]:
    """Return the shipped and installed sheets, by name."""
    folder = Path(__file__).parent
    sheets = [_read(path, path.name) for path in sorted(folder.glob("*.json"))]
    for plugin in plugins(GROUP):
        used_names = {
            _normalized(name) for sheet in sheets for name in (sheet.name, *sheet.aliases)
        }
        for sheet in (_read(path, str(path)) for path in plugin.files(".json")):
            plugin.refuse_duplicates(
                map(_normalized, (sheet.name, *sheet.aliases)), used_names, "device"
            )
            sheets.append(sheet)
    return {sheet.name: sheet for sheet in sheets}


def _read(path: Path, source: str) -> DeviceSheet:
    try:
        text = read_input(path).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise fail(f"cannot read device sheet {str(path)!r}: {error}", exit_code=2) from None
    return read_sheet(text, source)


def _normalized(name: str) -> str:
    return re.sub(r"[-_ ]", "", name).lower()
