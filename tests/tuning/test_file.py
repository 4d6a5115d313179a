"""``space.toml``: what it may say, and where it is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from irgraph.diagnostics import IrgraphError
from irgraph.tuning.file import parse_space, read_space, sizes_of
from tests.tuning.spaces import GRAPH, small

TEXT = """
passes = ["cast-gemms", "fuse-epilogue"]
dims.B = ["256:1536:256"]
devices = ["v100", "a100"]
objectives = ["throughput", "memory.peak"]

[values.cast-gemms]
narrow = ["bf16", "f16"]

[when.cast-gemms]
device = ["a100"]

[limits]
"step.time" = "0.2ms"

[prices]
v100 = 2
a100 = 3.5

[options]
accounting = "chained"
"""


def test_a_file_says_what_search_space_takes(tmp_path: Path) -> None:
    path = tmp_path / "space.toml"
    path.write_text(TEXT.replace('[options]\naccounting = "chained"\n', ""))
    space, objectives = read_space(str(path), GRAPH)
    wanted = small(limits={"step.time": "0.2ms"}, prices={"v100": 2, "a100": 3.5})
    assert space.axes == wanted.axes and space.fingerprint == wanted.fingerprint
    assert objectives == ("throughput", "memory.peak")


def test_options_are_those_of_predictions(tmp_path: Path) -> None:
    path = tmp_path / "space.toml"
    path.write_text('[options]\nsoftware = "torch-2"\npinned = true\n')
    options = read_space(str(path), GRAPH)[0].options
    assert (options.software, options.pinned, options.mode) == ("torch-2", True, "corrected")


def test_sizes_are_numbers_and_ranges() -> None:
    assert sizes_of("B", 64) == [64]
    assert sizes_of("B", "64") == [64]
    assert sizes_of("B", [1, "8:16:4", "30:31"]) == [1, 8, 12, 16, 30, 31]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("x", "give sizes such as 64"),
        (True, "give sizes such as 64"),
        (-4, "give sizes such as 64"),
        ("5:1", "a range goes up from at least 1"),
        ("0:5", "a range goes up from at least 1"),
        ("1:5:0", "a range goes up from at least 1"),
        ("1:1000000", "a range goes up from at least 1"),
    ],
)
def test_other_sizes_are_refused(given: int | str, message: str) -> None:
    with pytest.raises(IrgraphError, match=message):
        sizes_of("B", given)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("passes = x", "space.toml:1:10: error: not TOML: Invalid value"),
        ("pases = []", "not a space: .*`pases`; did you mean 'passes'"),
        ("passes = 3", r"not a space: Expected `array`, got `int` - at `\$.passes`"),
        ("[options]\nhost = 'v100'", "not a space: .*`host`"),
        ("[limits]\nx = []", "not a space: Expected"),
    ],
)
def test_other_files_are_refused(text: str, message: str) -> None:
    with pytest.raises(IrgraphError, match=message) as caught:
        parse_space(text, "space.toml")
    assert caught.value.exit_code == 4


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("dims.B = 64\npases = []", "space.toml:2:1: error: not a space"),
        ("dims.B = 64\npasses = 3", "space.toml:2:1: error: not a space"),
        ("[options]\nhost = 'v100'", "space.toml:2:1: error: not a space"),
        ("[dims]\nC = 64", "space.toml:2:1: error: dims: the model has no dimension 'C'"),
        ("devices = ['v1000']", r"space.toml:1:13: error: .*v1000"),
        (
            "passes = ['cast-gemms']\nvalues.cast-gemms.narow = ['f16']",
            "space.toml:2:19: error: values.cast-gemms: there is no 'narow' here",
        ),
    ],
)
def test_errors_name_their_line(text: str, place: str, tmp_path: Path) -> None:
    path = tmp_path / "space.toml"
    path.write_text(text)
    with pytest.raises(IrgraphError, match=place):
        read_space(str(path), GRAPH)
