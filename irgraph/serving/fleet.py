"""Hosts for a load, their power and price."""

from __future__ import annotations

import math

from msgspec import Struct

from irgraph.diagnostics import fail

FULL_CAPACITY = 1.0
"""Share of a host's capacity that a service may use."""


class Host(Struct, frozen=True):
    """A host of a fleet.

    Attributes:
        qps: maximum number of queries per second.
        watts: its power at that rate; any unit, if only hosts are compared.
        usd: its price, ``None`` if unknown.
        helpers: number of other hosts that it needs, such as a fifth of one that stores its tables.
        helper_watts: power of a helper.
        group: number of hosts that share one copy of the model; a fleet has whole groups.
    """

    qps: float
    watts: float
    usd: float | None = None
    helpers: float = 0.0
    helper_watts: float = 0.0
    group: int = 1


class Fleet(Struct, frozen=True):
    """Hosts that serve a load together: their number, their power, and their price if known."""

    hosts: int
    watts: float
    usd: float | None = None

    def saving(self, other: Fleet) -> float:
        """Return the share of another fleet's power that this one saves."""
        return 1.0 - self.watts / other.watts


def fleet(host: Host, qps: float, usable_share: float = FULL_CAPACITY) -> Fleet:
    """Return the fleet that serves ``qps`` queries per second.

    Args:
        host: one of its hosts.
        qps: queries per second of the whole service.
        usable_share: share of each host's capacity that the service may use; the rest is for peaks,
            or unusable because models share hosts badly.

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
