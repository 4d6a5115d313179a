"""Hosts for a load, their power and price."""

from __future__ import annotations

import math

from msgspec import Struct

from irgraph.diagnostics import fail

FULL_CAPACITY = 1.0
"""Share of a host's capacity that a service may use."""


class Host(Struct, frozen=True):
    """A host as a fleet sees it.

    Attributes:
        qps: queries a second that it serves at most.
        watts: its power then; in any unit, where hosts are compared.
        usd: its price, ``None`` where that is not known.
        helpers: other hosts that it needs, such as a fifth of one that holds tables for it.
        helper_watts: power of one of those.
        group: hosts that hold one copy of the model together; a fleet has whole groups.
    """

    qps: float
    watts: float
    usd: float | None = None
    helpers: float = 0.0
    helper_watts: float = 0.0
    group: int = 1


class Fleet(Struct, frozen=True):
    """Hosts that serve a load together: how many, their power, and their price if it is known."""

    hosts: int
    watts: float
    usd: float | None = None

    def saving(self, other: Fleet) -> float:
        """Return the share of another fleet's power that this one does not take."""
        return 1.0 - self.watts / other.watts


def fleet(host: Host, qps: float, usable_share: float = FULL_CAPACITY) -> Fleet:
    """Return the hosts that serve so many queries a second.

    Args:
        host: one of them.
        qps: queries a second of the whole service.
        used: share of each host's capacity that the service may use: what is left is for peaks, or
            lost to models that share hosts badly.

    Raises:
        IrgraphError: a host serves nothing, or no share of it may be used (exit code 2).
    """
    if not (host.qps > 0 and 0 < usable_share <= 1 and 0 < qps < math.inf):
        message = (
            f"{host.qps:g} queries a second a host, {usable_share:g} of it used: nothing is served"
        )
        raise fail(message, exit_code=2)
    needed = qps / (host.qps * usable_share) / host.group
    hosts = max(math.ceil(needed * (1.0 - 1e-12)), 1) * host.group
    watts = hosts * (host.watts + host.helpers * host.helper_watts)
    return Fleet(hosts, watts, None if host.usd is None else hosts * host.usd)
