"""Filters of private texts, by the allow lists of ``irgraph.anonymise``.

Public texts are unchanged; other texts are replaced by a pseudonym, ``""`` or ``None``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from irgraph.anonymise import public_names
from irgraph.anonymise.renaming import Anonymiser, number
from irgraph.backend import backend
from irgraph.ir.dtypes import ITEMSIZE

_VERSION = re.compile(
    r"\d{1,4}(?:\.\d{1,5}){0,3}(?:(?:a|b|rc)\d{1,2})?(?:\+(?:cpu|cu\d{2,3}|rocm[\d.]{1,6}|xpu))?",
    re.ASCII,
)
_DEVICE = re.compile(r"(?:cpu|cuda|hip|xpu|mps)(?::\d{1,4})?", re.ASCII)
_PROCESSORS = frozenset(("x86_64", "amd64", "aarch64", "arm64", "ppc64le", "s390x", "riscv64"))
_WORD = re.compile(r"[^\W\d][\w.]*")
_LAW = re.compile(r"(?:uniform|zipf:[\d.]{1,12})?", re.ASCII)
_SHAPES = re.compile(r"\w+\[[\d,]*\](?: \w+\[[\d,]*\])*", re.ASCII)
_VALUE_WORDS = frozenset(("float", "True", "False", "None", "inf", "nan", "e"))


class TextFilter:
    """Filter of private texts.

    Attributes:
        everything: whether the user requested private texts as well.
        names: creates pseudonyms of operators and ranges, the same throughout a file.
    """

    def __init__(self, everything: bool = False) -> None:
        self.everything = everything
        self.names = Anonymiser()

    def name(self, text: str) -> str:
        """Return an operator's name, or its pseudonym."""
        return text if self.everything else self.names.name(text)

    def kernel(self, text: str) -> str:
        """Return a kernel's name with its public words."""
        return text if self.everything else self.names.kernel(text)

    def card(self, text: str) -> str:
        """Return the name of a card or processor, ``""`` if it is not public."""
        is_public = self.everything or public_names.is_card(text) or text.lower() in _PROCESSORS
        return text if is_public else ""

    def version(self, text: object) -> str:
        """Return a version without any suffix that is not public."""
        if self.everything:
            return str(text or "")
        match = _VERSION.match(str(text or ""))
        return match[0] if match else ""

    def device(self, text: object) -> str:
        """Return torch's name of a device, ``""`` if it is another text."""
        return str(text) if self.everything or _DEVICE.fullmatch(str(text)) else ""

    def free_text(self, text: object) -> str:
        """Return a text written by the user, ``""`` unless ``everything``."""
        return str(text) if self.everything else ""

    def is_public_shape(self, text: str) -> bool:
        """Return whether a text contains only types and sizes of operands."""
        return self.everything or (bool(_SHAPES.fullmatch(text)) and self.has_public_words(text))

    def has_public_words(self, text: str) -> bool:
        """Return whether all words of a text are in torch's schemas, types and values."""
        if self.everything:
            return True
        public_words = (
            public_names.argument_words()
            | public_names.public_names("values")
            | ITEMSIZE.keys()
            | _VALUE_WORDS
        )
        return all(word in public_words for word in _WORD.findall(text))

    def is_public_call(self, text: str) -> bool:
        """Return whether a call with its operands (``aten.mm(f32[8,8], …)``) is public."""
        name, sign, rest = text.partition("(")
        is_operator = name in public_names.operators() and bool(sign)
        return self.everything or (is_operator and self.has_public_words(rest))

    def is_index_law(self, text: str) -> bool:
        """Return whether a text is a distribution of indices."""
        return self.everything or bool(_LAW.fullmatch(text))

    def shipped_host(self, text: str) -> str:
        """Return the name of a shipped host table, ``""`` for another name."""
        return text if self.everything or text in backend().hosts() else ""

    def are_shipped(self, *texts: str) -> bool:
        """Return whether texts are names of shipped families, ops, sizes or evaluations."""
        return self.everything or all(text in backend().words() for text in texts)


def software(head: Mapping[str, Any], text_filter: TextFilter) -> str:
    """Return the versions in the head of a file, as in ``torch 2.13.0, CUDA 12.8``."""
    labels = {"torch": "torch", "cuda": "CUDA", "python": "Python"}
    versions = ((name, text_filter.version(head.get(key))) for key, name in labels.items())
    return ", ".join(f"{name} {version}" for name, version in versions if version)


def figures(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the finite numbers and truth values of a record."""
    numbers = ((key, number(value)) for key, value in record.items())
    return {key: value for key, value in numbers if value is not None}
