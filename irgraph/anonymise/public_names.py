"""Public names: torch's operators and labels, runtime calls, and words in names of kernels.

The lists are files of ``words``, one name a line. ``calls`` has the functions of CUDA's and HIP's
runtime and driver; ``kernels`` the words in names of public libraries' kernels; ``labels`` the
names of ranges of torch's profiler, optimizers, loaders and collectives; ``operators`` and
``arguments`` names of public libraries outside the shipped schemas; ``values`` the words in
arguments and types.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

from irgraph.ir.schema import schema_words, shipped_ops

NAME_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
"""A word or number in a name: ``CUDAFunctor_add2`` is ``CUDA``, ``Functor``, ``add`` and ``2``."""

_BACKWARD = re.compile(r"(\w+?)Backward\d{0,2}", re.ASCII)
_STEP = re.compile(r"ProfilerStep#\d{1,9}|Torch-Compiled Region: \d{1,4}/\d{1,4}", re.ASCII)
_CARD = re.compile(
    r"nvidia|amd|tesla|geforce|quadro|titan|rtx|gtx|instinct|radeon|graphics|super|ti|x|xp|rtx|ada|"
    r"generation|pcie|sxm\d?|hbm\d?e?|nvl|dgxs|oam|gh200|gb\d{3}|pg\d{3}|pro|max|q|mig|\d{1,4}|"
    r"\d{1,3}gb|[avtphblk]\d{1,3}[a-z]?|mi\d{2,3}x?",
    re.ASCII,
)


@cache
def public_names(name: str) -> frozenset[str]:
    """Return the names of the list ``name``."""
    text = (resources.files("irgraph.anonymise.words") / f"{name}.txt").read_text("utf-8")
    return frozenset(text.splitlines())


@cache
def operators() -> frozenset[str]:
    """Return the dotted names of all public operators."""
    return shipped_ops() | public_names("operators")


@cache
def libraries() -> frozenset[str]:
    """Return the first words of public operators."""
    return frozenset(name.partition(".")[0] for name in operators())


@cache
def argument_words() -> frozenset[str]:
    """Return the words of public operators' schemas."""
    return schema_words() | public_names("arguments")


def is_node(name: str) -> bool:
    """Return whether a name, such as ``AddmmBackward0``, is a node of a public operator."""
    if name in public_names("labels"):
        return True
    match = _BACKWARD.fullmatch(name)
    return match is not None and _squeeze(match[1]) in _operator_bases()


def is_label(name: str) -> bool:
    """Return whether torch itself uses a name for a range."""
    return name in public_names("labels") or _STEP.fullmatch(name) is not None


def is_card(name: str) -> bool:
    """Return whether vendors use every word of a name for cards."""
    words = re.split(r"[ _-]", name.lower())
    return all(_CARD.fullmatch(word) for word in words)


def is_public_part(text: str) -> bool:
    """Return whether a word or number may be in the name of any kernel."""
    return (
        len(text) < 6
        if text.isdigit()
        else len(text) == 1 or text.lower() in public_names("kernels")
    )


@cache
def _operator_bases() -> frozenset[str]:
    return frozenset(_squeeze(name.partition(".")[2]) for name in operators())


def _squeeze(name: str) -> str:
    return name.replace("_", "").lower()
