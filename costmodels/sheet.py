"""Device sheets: what a card's datasheet promises beside what was measured on one."""

from __future__ import annotations

import json
import re
from functools import cache
from importlib import resources
from pathlib import Path

import msgspec

from irgraph.text.diagnostics import Place, fail, near

UNMEASURED_SHARE = 0.9
"""Share of a datasheet's DRAM bandwidth that is taken as reachable where nobody measured it: the
cards measured at their stock memory clock reach 0.89 (A100) and 0.91 (V100) of it."""

UNITS_SHARE = 0.75
"""Share of the matrix units' peak that large products reach (``costmodels.tiles.TILES``): what a
measured rate of such products is divided by where no datasheet tells the peak."""

LINK_SHARE, PAGEABLE_SHARE = 0.79, 0.65
"""Share of the raw PCIe rate that a copy from pinned memory reaches, and share of that which one
from pageable memory reaches, where nobody measured: both as measured on V100-SXM2-16GB."""

PAGEABLE_MOST = 8.1
"""GB/s of copies from pageable memory that a faster bus does not raise: one host thread stages them
(the same 8.1 GB/s were measured on V100 and A100, on buses of 15.8 and 31.5 GB/s; a trace of an
RTX 2080 Ti shows 3 to 4)."""

ARCHITECTURES = ("pascal", "volta", "turing", "ampere", "ada", "hopper", "cpu")
"""What formulas distinguish; a card of another one takes the nearest of these."""


class Figure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One property of a card.

    Attributes:
        datasheet: the maker's figure, in the unit that the sheet's field names.
        measured: what a benchmark reached, or the setting the card was measured at.
        source: where both come from.
    """

    datasheet: float | None = None
    measured: float | None = None
    source: str = ""

    @property
    def value(self) -> float | None:
        """The measured figure, or the datasheet's where nobody measured."""
        return self.datasheet if self.measured is None else self.measured


class DeviceSheet(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One variant of a card.

    Attributes:
        name: such as ``V100-SXM2-16GB``.
        aliases: other names that stand for this sheet.
        architecture: ``pascal``, ``volta``, ``turing``, ``ampere``, ``ada`` or ``hopper``.
        note: what the sheet stands for, where a name alone would leave it open.
        sms: streaming multiprocessors.
        memory_bytes, l2_bytes: device memory and second-level cache, bytes.
        clock_mhz: the boost clock that the datasheet's peaks hold at, and the clock at which the
            card that the measurements come from really ran.
        fp32_gflops, fp64_gflops: peak of the plain cores, GFLOP/s.
        fp64_units_gflops, tf32_gflops, fp16_gflops, bf16_gflops: dense peak of the matrix units,
            GFLOP/s; absent where the card has none for the type.
        dram_gbs, l2_gbs: bandwidth of device memory and of the second-level cache, GB/s.
        pinned_gbs, pageable_gbs: bandwidth of copies between host and device, by the kind of
            host memory, GB/s; the datasheet's is the raw rate of the bus.
        pinned_to_host_gbs, pageable_to_host_gbs: the same of copies to the host; absent where they
            are as fast as those from it.
        launch_us: of an op that computes next to nothing, from the call to the end, microseconds:
            to compare with a host's overheads, which schedules take.
        link_gbs: bandwidth to other cards, both directions together, GB/s.
        tf32: whether float32 matrix products use the matrix units' tf32 (torch's default: no).
        tf32_convolutions: the same of convolutions (torch's default: yes, where there are such
            units).
    """

    name: str
    architecture: str
    sms: int
    memory_bytes: int
    l2_bytes: int
    clock_mhz: Figure
    fp32_gflops: Figure
    dram_gbs: Figure
    pinned_gbs: Figure
    pageable_gbs: Figure = Figure()
    pinned_to_host_gbs: Figure = Figure()
    pageable_to_host_gbs: Figure = Figure()
    launch_us: Figure = Figure()
    l2_gbs: Figure = Figure()
    fp64_gflops: Figure = Figure()
    fp64_units_gflops: Figure = Figure()
    tf32_gflops: Figure = Figure()
    fp16_gflops: Figure = Figure()
    bf16_gflops: Figure = Figure()
    link_gbs: Figure = Figure()
    aliases: tuple[str, ...] = ()
    note: str = ""
    tf32: bool = False
    tf32_convolutions: bool = True

    @property
    def clock(self) -> float:
        """MHz at which the multiprocessors run."""
        return _known(self.clock_mhz.value)

    @property
    def bandwidth(self) -> float:
        """Reachable DRAM bandwidth in GB/s: measured, else a share of the datasheet's."""
        if self.dram_gbs.measured is not None:
            return self.dram_gbs.measured
        return _known(self.dram_gbs.datasheet) * UNMEASURED_SHARE

    @property
    def l2_bandwidth(self) -> float:
        """Bandwidth of the second-level cache in GB/s; twice the DRAM's where nobody measured."""
        return self.l2_gbs.value or 2 * self.bandwidth

    def host_bandwidth(self, pinned: bool, to_host: bool = False) -> float:
        """Return the bandwidth of copies between host and device in GB/s."""
        back = self.pinned_to_host_gbs if pinned else self.pageable_to_host_gbs
        if to_host and back.value is not None:
            return back.value
        raw = _known(self.pinned_gbs.datasheet or self.pinned_gbs.measured)
        best = self.pinned_gbs.measured or raw * LINK_SHARE
        if pinned:
            return best
        return self.pageable_gbs.value or min(best * PAGEABLE_SHARE, PAGEABLE_MOST)

    @property
    def convolution_dtype(self) -> str:
        """The type in which convolutions of float32 compute: ``tf32`` or ``f32``."""
        return "tf32" if self.tf32_convolutions and self.has_tf32 else "f32"

    @property
    def has_tf32(self) -> bool:
        """Whether the sheet knows of matrix units that multiply in tf32."""
        return self.tf32_gflops.value is not None

    def peak(self, dtype: str) -> tuple[float, bool]:
        """Return the peak of matrix products in GFLOP/s, and whether matrix units give it.

        The datasheet's peak, scaled from the boost clock to the clock at which the card ran. A
        rate of f64 products that somebody measured, where no datasheet tells the peak, counts as
        that of matrix units. Raises ``IrgraphError`` where the sheet says nothing of f64.
        """
        scale = self.clock / _known(self.clock_mhz.datasheet)
        kind = "tf32" if dtype == "f32" and self.tf32 else dtype
        units = self._units().get(kind, Figure())
        if units.value is not None:
            return (units.datasheet or units.value / UNITS_SHARE) * scale, True
        plain = self.fp64_gflops if dtype == "f64" else self.fp32_gflops
        if plain.datasheet is None:
            raise fail(
                f"device sheet {self.name} has no fp64_gflops, which products in f64 need",
                hint="add the datasheet's figure; fp64_units_gflops is that of its matrix units",
            )
        return plain.datasheet * scale, False

    def _units(self) -> dict[str, Figure]:
        f64 = self.fp64_units_gflops
        if f64.value is None and self.fp64_gflops.datasheet is None:
            f64 = self.fp64_gflops
        narrow = {"tf32": self.tf32_gflops, "f16": self.fp16_gflops, "bf16": self.bf16_gflops}
        return {**narrow, "f64": f64}


def list_devices() -> tuple[str, ...]:
    """Return the names of the shipped sheets, sorted."""
    return tuple(sorted(_shipped()))


def architecture_of(card: str) -> str:
    """Return the architecture of a card by what its driver calls it, ``""`` if none is known.

    Variants of a card share it: ``Tesla V100-DGXS-32GB`` is a V100.
    """
    named = {_model(sheet.name): sheet.architecture for sheet in _shipped().values()}
    return named.get(_model(card), "")


def recorded_sheet(card: str) -> DeviceSheet | None:
    """Return the sheet of a card by what its driver calls it: its own, not one of its model."""
    words = card.split()
    known = _names()
    tails = (_plain("".join(words[start:])) for start in range(len(words)))
    return next((_shipped()[known[tail]] for tail in tails if tail in known), None)


def default_sheet(card: str) -> str:
    """Return the name of the sheet that a card is priced by, ``v100`` where none is known."""
    own = recorded_sheet(card)
    if own is not None:
        return own.name
    return _names().get(_plain(_model(card)), "v100")


def same_model(card: str, other: str) -> bool:
    """Tell whether two names of cards are of one model, such as V100, whatever its variant."""
    return _model(card) == _model(other)


def _model(card: str) -> str:
    found = _MODEL.search(card.upper().replace("-", " "))
    return found[0] if found else card


_MODEL = re.compile(r"\b([A-Z]{1,2}\d{1,3}|\d{4}( TI| SUPER)?|TITAN \w+)\b")


def load_device(name_or_path: str | Path) -> DeviceSheet:
    """Return a shipped sheet by name or alias, or a user's own from a ``.json`` file.

    Names are compared without regard to case, ``-``, ``_`` and spaces. Raises ``IrgraphError``
    for an unknown name (with the nearest one) or an unusable file (with the field at fault).
    """
    text = str(name_or_path)
    if text.endswith(".json") or "/" in text:
        return _from_file(Path(text))
    wanted = _plain(text)
    by_name = _names()
    if wanted in by_name:
        return _shipped()[by_name[wanted]]
    guess = near(wanted, by_name)
    if guess:
        guess = f"; did you mean {by_name[guess.split(chr(39))[1]]!r}?"
    raise fail(
        f"no device sheet named {text!r}{guess}",
        hint="`irgraph devices` lists them; a path to a .json file of your own works too",
        exit_code=2,
    )


def device_values() -> list[dict[str, object]]:
    """Return every shipped sheet as plain values, with figures and sources, for programs."""
    return [msgspec.to_builtins(sheet) for _, sheet in sorted(_shipped().items())]


def device_rows() -> list[dict[str, str]]:
    """Return one row of texts for each shipped sheet, for a table of devices."""
    return [_row(sheet) for _, sheet in sorted(_shipped().items())]


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
    by_name = {_plain(name): name for name in _shipped()}
    for sheet in _shipped().values():
        by_name |= {_plain(alias): sheet.name for alias in sheet.aliases}
    return by_name


@cache
def _shipped() -> dict[str, DeviceSheet]:
    folder = resources.files("costmodels.devices")
    files = [item for item in folder.iterdir() if item.name.endswith(".json")]
    sheets = [_decode(item.read_text(encoding="utf-8"), item.name) for item in files]
    return {sheet.name: sheet for sheet in sheets}


def _from_file(path: Path) -> DeviceSheet:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise fail(f"cannot read device sheet {str(path)!r}: {error}", exit_code=2) from None
    return _decode(text, str(path))


def _decode(text: str, source: str) -> DeviceSheet:
    place = Place(source)
    try:
        raw = json.loads(text)
    except ValueError as error:
        raise fail(f"device sheet is not JSON: {error}", place) from None
    _check_fields(raw, DeviceSheet, "", place)
    try:
        sheet = msgspec.convert(raw, DeviceSheet)
    except msgspec.ValidationError as error:
        raise fail(f"device sheet: {_words(str(error))}", place) from None
    _check_values(sheet, place)
    return sheet


def _check_fields(raw: object, kind: type, where: str, place: Place) -> None:
    """Name an unknown field and the nearest known one."""
    if not isinstance(raw, dict):
        return
    known = [field.name for field in msgspec.structs.fields(kind)]
    for key, value in raw.items():
        if key not in known:
            raise fail(f"device sheet has no field {where + key!r}{near(key, known)}", place)
        if isinstance(value, dict) and kind is DeviceSheet:
            _check_fields(value, Figure, f"{key}.", place)


def _check_values(sheet: DeviceSheet, place: Place) -> None:
    """A rate that a formula divides by must be there, and positive."""
    if sheet.architecture not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        message = f"device sheet: no architecture {sheet.architecture!r}"
        guess = near(sheet.architecture.lower(), ARCHITECTURES)
        raise fail(message + guess, place, hint=f"known: {known}")
    for name in ("clock_mhz", "fp32_gflops", "dram_gbs"):
        figure: Figure = getattr(sheet, name)
        if figure.datasheet is None:
            raise fail(f"device sheet: {name}.datasheet is missing", place)
    if sheet.pinned_gbs.value is None:
        raise fail("device sheet: pinned_gbs has neither a datasheet nor a measured value", place)
    for field in msgspec.structs.fields(DeviceSheet):
        value = getattr(sheet, field.name)
        numbers = (value.datasheet, value.measured) if isinstance(value, Figure) else (value,)
        if any(isinstance(n, int | float) and n <= 0 and n is not False for n in numbers):
            raise fail(f"device sheet: {field.name} must be above zero", place)


def _words(message: str) -> str:
    """Turn msgspec's wording into ours: ``$.sms`` is the field ``sms``."""
    found = re.match(r"(.*) - at `\$\.(.*)`$", message)
    if found:
        return f"field {found[2]!r}: {found[1][0].lower()}{found[1][1:]}"
    return message.replace("Object missing required field", "missing field").replace("`", "'")


def _plain(name: str) -> str:
    return re.sub(r"[-_ ]", "", name).lower()


def _known(value: float | None) -> float:
    if value is None:
        raise fail("a rate that this formula needs is missing from the device sheet")
    return value
