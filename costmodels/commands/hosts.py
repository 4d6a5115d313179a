"""``irgraph hosts``: the shipped tables of host overheads."""

from __future__ import annotations

from irgraph.cli.common import JsonOption, print_listing, write_json

PANEL = "cost models"


def hosts(json: JsonOption = False) -> None:
    """List the shipped tables of host overheads; --json gives whole tables."""
    from irgraph.overheads import host_rows, host_values

    if json:
        write_json(host_values())
    else:
        print_listing("hosts", host_rows())
