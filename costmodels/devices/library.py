"""Looks up device sheets: shipped ones, those of installed packages, and files."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import msgspec

from costmodels.devices.sheet import LOCKED, DeviceSheet, Figure, read_sheet
from irgraph.diagnostics import fail, suggestion
from irgraph.plugins import plugins

PAPER = "v100@1297"
"""The paper's card, whose clock the benchmark scripts of owensgroup/ml_perf_model lock."""

GROUP = "irgraph.devices"
"""Entry points of this group name packages whose folders hold more sheets."""


def list_devices() -> tuple[str, ...]:
    """Return the names of the sheets that ship or are installed, sorted."""
    return tuple(sorted(_sheets()))


def recorded_sheet(card: str) -> DeviceSheet | None:
    """Return the sheet of a card by what its driver calls it: its own, not one of its model."""
    words = card.split()
    known = _names()
    tails = (_plain("".join(words[start:])) for start in range(len(words)))
    return next((_sheets()[known[tail]] for tail in tails if tail in known), None)


def sheet_of_card(card: str) -> str:
    """Return the name of the sheet that a card is priced by: its own, or else its model's.

    ``""`` where none is known.
    """
    own = recorded_sheet(card)
    return own.name if own is not None else _names().get(_plain(_model(card)), "")


def same_model(card: str, other: str) -> bool:
    """Return whether two names of cards are of one model, such as V100, whatever its variant."""
    return _model(card) == _model(other)


def _model(card: str) -> str:
    found = _MODEL.search(card.upper().replace("-", " "))
    return found[0] if found else card


_MODEL = re.compile(r"\b(PRO \d{4}|[A-Z]{1,2}\d{1,3}[A-Z]?|\d{4}( TI| SUPER)?|TITAN \w+)\b")


def load_device(name_or_path: str | Path) -> DeviceSheet:
    """Return a sheet by name or alias, or a user's own from a ``.json`` file.

    Names are compared without regard to case, ``-``, ``_`` and spaces. ``NAME@MHZ`` is the card
    with its multiprocessors' clock locked. Raises ``IrgraphError`` for an unknown name (with the
    nearest one), an unusable file (with the field at fault), or a clock above the boost clock.
    """
    text = str(name_or_path)
    locked = _LOCKED.fullmatch(text)
    if locked is not None and LOCKED not in locked[1]:
        return _at_clock(load_device(locked[1]), float(locked[2]))
    if text.endswith(".json") or "/" in text:
        return _read(Path(text), text)
    wanted = _plain(text)
    by_name = _names()
    if wanted in by_name:
        return _sheets()[by_name[wanted]]
    guess = suggestion(wanted, by_name)
    if guess:
        guess = f"; did you mean {by_name[guess.split(chr(39))[1]]!r}?"
    raise fail(
        f"no device sheet named {text!r}{guess}",
        hint="`irgraph devices` lists them; a path to a .json file of your own works too",
        exit_code=2,
    )


_LOCKED = re.compile(rf"(.+){LOCKED}(\d+(?:\.\d+)?)")


LEAST_MHZ = 100
"""Cards do not lock their clock below this."""


def _at_clock(sheet: DeviceSheet, mhz: float) -> DeviceSheet:
    """Return a card with its clock locked: its peaks follow, its memory does not."""
    boost = sheet.clock_mhz.datasheet or 0.0
    if not LEAST_MHZ <= mhz <= boost:
        holds = f"between {LEAST_MHZ} MHz and its boost clock of {boost:g}"
        message = f"{sheet.name} cannot run at {mhz:g} MHz: it runs {holds}"
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
    """Show datasheet and measured value side by side."""
    left = "-" if figure.datasheet is None else f"{figure.datasheet:g}"
    right = "-" if figure.measured is None else f"{figure.measured:g}"
    return f"{left} / {right}"


@cache
def _names() -> dict[str, str]:
    """Return the names of sheets by all that they are called."""
    by_name = {_plain(name): name for name in _sheets()}
    for sheet in _sheets().values():
        by_name |= {_plain(alias): sheet.name for alias in sheet.aliases}
    return by_name


@cache
def _sheets() -> dict[str, DeviceSheet]:
    """Return the shipped sheets and those of installed packages, by name."""
    folder = Path(__file__).parent
    found = [_read(path, path.name) for path in sorted(folder.glob("*.json"))]
    for plugin in plugins(GROUP):
        taken = {_plain(name) for sheet in found for name in (sheet.name, *sheet.aliases)}
        for sheet in (_read(path, str(path)) for path in plugin.files(".json")):
            plugin.refuse_duplicates(map(_plain, (sheet.name, *sheet.aliases)), taken, "device")
            found.append(sheet)
    return {sheet.name: sheet for sheet in found}


def _read(path: Path, source: str) -> DeviceSheet:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise fail(f"cannot read device sheet {str(path)!r}: {error}", exit_code=2) from None
    return read_sheet(text, source)


def _plain(name: str) -> str:
    return re.sub(r"[-_ ]", "", name).lower()
