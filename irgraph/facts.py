"""The store of facts about ops, graphs and calls that are computed once.

Ops and graphs never change: a fact that is stored with one stays true, and is freed with it
(``facts_of``, ``fact``). Facts about calls that are equal in many graphs are in tables with a
bound (``FactTable``, ``cached_calls``). The environment variable ``IRGRAPH_FACTS=off`` turns all of
it off: every fact is then computed again at each use, with equal results.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable
from functools import lru_cache
from itertools import islice
from typing import Any, Generic, ParamSpec, TypeVar, overload

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
T = TypeVar("T")
P = ParamSpec("P")

STORED = os.environ.get("IRGRAPH_FACTS", "on") != "off"
"""Switch of the store: false if the environment turns it off when irgraph is imported."""


def _stored_facts(owner: object) -> dict[str, Any]:
    """Return the facts of an op or a graph by slot: the caller may add to them.

    A slot has the name of the module that computes the fact. A fact may not refer to its own op,
    which would then be freed by garbage collection only.
    """
    return owner.__dict__


def _no_facts(owner: object) -> dict[str, Any]:
    """Return a new dictionary, which its caller fills in vain."""
    return {}


facts_of = _stored_facts if STORED else _no_facts


def fact(owner: object, slot: str, compute: Callable[[Any], T]) -> T:
    """Return a fact of an op or a graph; compute and store it on the first call."""
    facts = facts_of(owner)
    if slot not in facts:
        facts[slot] = compute(owner)
    result: T = facts[slot]
    return result


LASTING_SLOT = "irgraph.facts.lasting"
"""Slot of the facts of an op that hold at every size."""


def lasting_facts(op: object) -> dict[str, Any]:
    """Return the facts of an op that hold at every size: its resized forms share them."""
    facts: dict[str, Any] = facts_of(op).setdefault(LASTING_SLOT, {})
    return facts


def share_lasting_facts(op: object, resized: object) -> None:
    """Share the facts of an op that hold at every size with a resized form of it."""
    facts_of(resized)[LASTING_SLOT] = lasting_facts(op)


class StoredProperty(Generic[T]):
    """An attribute that is computed at its first use, and then in the object's dictionary.

    Unlike ``functools.cached_property`` of Python 3.11 it takes no lock, for the sake of steps at
    new sizes, whose ops are all new: another thread may compute an equal value.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self.compute, self.name, self.__doc__ = compute, compute.__name__, compute.__doc__

    @overload
    def __get__(self, owner: None, cls: type) -> StoredProperty[T]: ...

    @overload
    def __get__(self, owner: object, cls: type) -> T: ...

    def __get__(self, owner: object | None, cls: type) -> T | StoredProperty[T]:
        """Return the value; afterwards the object's own dictionary answers."""
        if owner is None:
            return self
        value: T = self.compute(owner)
        owner.__dict__[self.name] = value
        return value


REMOVED_SHARE = 8
"""A full table removes an eighth of its facts at once: each search for the oldest one passes the
places of all that were removed before."""


class FactTable(dict[K, V]):
    """Facts by key; the oldest are removed above a limit, and none are stored if facts are off."""

    __slots__ = ("limit",)

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def __setitem__(self, key: K, value: V) -> None:
        """Store a fact."""
        if not STORED:
            return
        super().__setitem__(key, value)
        if len(self) > self.limit:
            for oldest in list(islice(self, 1 + self.limit // REMOVED_SHARE)):
                self.pop(oldest, None)  # other threads may be here, too


def cached_calls(limit: int) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Return a decorator that caches the latest ``limit`` results of a function."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        return lru_cache(maxsize=limit)(function) if STORED else function  # type: ignore[return-value]

    return decorate
