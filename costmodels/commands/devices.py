"""``irgraph devices``: the shipped device sheets."""

from __future__ import annotations

from irgraph.cli.common import JsonOption, print_listing, write_json

PANEL = "cost models"


def devices(json: JsonOption = False) -> None:
    """List the shipped device sheets, one for each variant of a card.

    Figures read datasheet / measured; --json gives whole sheets with their sources.
    """
    from costmodels.devices.library import device_rows, device_values

    if json:
        write_json(device_values())
    else:
        print_listing("devices (datasheet / measured)", device_rows())
