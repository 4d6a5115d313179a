"""Pseudonyms for the names of a program, the same in all files of one run."""

from __future__ import annotations

import hashlib
import hmac
import re
from functools import partial
from typing import Any

from irgraph.anonymise import public_names
from irgraph.capture.kineto.events.families import SIGN, family_of
from irgraph.capture.kineto.reading.trace import EventKind
from irgraph.ir.dtypes import ITEMSIZE, TORCH

_EVALUATE = "autograd::engine::evaluate_function: "
_PREFIXES = (
    _EVALUATE, "torch::autograd::", "nn.Module: ", "module::", "irgraph.module#",
    "irgraph.origin#", "[pytorch|profiler|", "Optimizer.step#", "Optimizer.zero_grad#",
    "Optimizer.", "enumerate(DataLoader)", "label ", "autograd.",
)  # fmt: skip
"""Prefixes by which other commands distinguish ranges; they stay in front of a pseudonym."""

_TRAITS = ("StreamWaitEvent", "Wait Event", "Event", "Stream", "Context", "ynchronize")
"""Words by which other commands distinguish waits; they are appended to a pseudonym."""

_OPERATOR = re.compile(r"(\w+)(::|\.)(?:\w+)((?:::|\.)\w+)*", re.ASCII)
_BACKWARD = re.compile(r"\w*Backward\d{0,2}", re.ASCII)
_RANKS = re.compile(r"\[(?:\d{1,6}|\.{3})?(?:, (?:\d{1,6}|\.{3}))*\]", re.ASCII)
"""Ranks of a process group; torch shortens long lists."""
_NUMBER = re.compile(r"-?\d{1,19}(?:\.\d{1,9})?|stream \d{1,9} ?", re.ASCII)
_DEVICE = re.compile(r"(?:cuda|cpu|meta|hip|mps|xpu)(?::\d{1,4})?|<(?:None|Storage|Stream|Object)>")
_TYPE = re.compile(r"(?:Tensor|GenericList|Tuple|List|Optional|Dict)[\[(].*", re.DOTALL)
_TOKEN = re.compile(r"[^\W\d]\w*")
_IN_KERNELS = re.compile(r"[^\w<>()\[\]{},:*&= -]")
_IN_SCHEMAS = re.compile(r"[^\w<>()\[\],:*=.!?|>\" -]")
_WORDS = frozenset((*ITEMSIZE, *TORCH.values()))


class Anonymiser:
    """Replaces names by pseudonyms, consistently over all files of a run.

    Attributes:
        names: pseudonyms by name.
        key: if not empty, pseudonyms are hashes of names with this key, else they are numbered.
    """

    def __init__(self, key: str = "") -> None:
        self.names: dict[str, str] = {}
        self.key = key
        self._numbers: dict[object, int] = {}
        self._kernels: dict[str, str] = {}

    def pseudonym(self, text: str, word: str = "name") -> str:
        """Return the pseudonym for a name of the program."""
        if not self.key:
            return self.names.setdefault(text, f"{word}{len(self.names) + 1}")
        encoded = text.encode("utf-8", "surrogatepass")
        digest = hmac.new(self.key.encode("utf-8", "surrogatepass"), encoded, hashlib.sha256)
        return self.names.setdefault(text, f"{word}_{digest.hexdigest()[:12]}")

    def name(self, text: str) -> str:
        """Return the name of a range: an operator, an autograd node or a label."""
        if public_names.is_label(text):
            return text
        prefix = next((candidate for candidate in _PREFIXES if text.startswith(candidate)), "")
        rest = text[len(prefix) :]
        if prefix in (_EVALUATE, "torch::autograd::", "autograd."):
            return prefix + self.node(rest)
        if prefix:
            return prefix + self.pseudonym(rest)
        if text.startswith("triton"):
            return self.kernel(text)
        return self.operator(text) if _OPERATOR.fullmatch(text) else self.node(text)

    def node(self, text: str) -> str:
        """Return the name of an autograd node, or a pseudonym for the name of any other range."""
        if public_names.is_label(text) or public_names.is_node(text):
            return text
        if text.startswith("torch::autograd::"):
            return self.name(text)
        return self.pseudonym(text) + ("Backward0" if _BACKWARD.fullmatch(text) else "")

    def operator(self, text: str) -> str:
        """Return the name of an operator, spelled ``aten::add`` or ``aten.add``."""
        match = _OPERATOR.fullmatch(text)
        if match is None:
            return self.pseudonym(text)
        dotted = text.replace("::", ".")
        if dotted in public_names.operators():
            return text
        library, mark = match[1], match[2]
        if library == "autograd":
            return library + mark + self.node(text[len(library + mark) :])
        library = library if library in public_names.libraries() else "private"
        end = "_" if text.endswith("_") and not text.endswith("__") else ""
        return f"{library}{mark}{self.pseudonym(dotted)}{end}"

    def call(self, text: str) -> str:
        """Return the name of a runtime function or of a record of waiting."""
        if text in public_names.public_names("calls") or public_names.is_label(text):
            return text
        return self.pseudonym(text) + "".join(f" {trait}" for trait in _TRAITS if trait in text)

    def kernel(self, text: str, kind: int = EventKind.KERNEL) -> str:
        """Return the name of a kernel with its public words, of the same family."""
        if text not in self._kernels:
            bare = _IN_KERNELS.sub("_", text)
            renamed = public_names.NAME_PART.sub(self._part, re.sub(r"[^\x00-\x7f]", "_", bare))
            family = family_of(text, kind)
            is_same_family = family_of(renamed, kind) == family
            with_family = f"{SIGN[family]} {renamed}" if family in SIGN else self.pseudonym(text)
            self._kernels[text] = renamed if is_same_family else with_family
        return self._kernels[text]

    def _part(self, match: re.Match[str]) -> str:
        return match[0] if public_names.is_public_part(match[0]) else self.pseudonym(match[0], "w")

    def schema(self, text: str) -> str:
        """Return a schema under its operator's new name, with the words of public schemas."""
        head, mark, rest = text.partition("(")
        if not mark:
            return self.pseudonym(text) if text else ""
        name, dot, overload = head.partition(".")
        schema = self.operator(name)
        if overload:
            schema += dot + self._token(overload, public_names.argument_words(), "form")
        return schema + mark + self._replace_words(rest, public_names.argument_words(), "arg")

    def argument(self, text: str) -> str:
        """Return the name of an operator's argument."""
        return self._token(text, public_names.argument_words(), "arg")

    def text(self, text: str) -> str:
        """Return a text among an event's arguments or a node's values."""
        if not text or text in public_names.public_names("values") or text in _WORDS:
            return text
        if _NUMBER.fullmatch(text) or _DEVICE.fullmatch(text) or _RANKS.fullmatch(text):
            return text
        words = public_names.public_names("values")
        if _TYPE.fullmatch(text) or all(word in words for word in text.split(" ")):
            return self._replace_words(text, words, "type")
        return self.pseudonym(text)

    def value(self, value: Any) -> Any:  # noqa: ANN401
        """Return an argument: numbers are unchanged, texts are filtered, objects are omitted."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return list(map(self.value, value))
        return None if isinstance(value, dict) else number(value)

    def card(self, text: str) -> str:
        """Return the name of a card."""
        return text if public_names.is_card(text) else self.pseudonym(text, "card")

    def number(self, value: Any) -> Any:  # noqa: ANN401
        """Return the number of a process or thread, from 1; words of the format are unchanged."""
        if isinstance(value, str) and (
            value in ("", "Spans", "Traces") or _NUMBER.fullmatch(value)
        ):
            return value if not value.lstrip("-").isdecimal() else self._count(int(value))
        if isinstance(value, str):
            return self.pseudonym(value)
        return self._count(value) if isinstance(value, int) and value else number(value)

    def _count(self, value: int) -> int:
        return self._numbers.setdefault(value, len(self._numbers) + 1) if value else value

    def _replace_words(self, text: str, words: frozenset[str], word: str) -> str:
        """Replace the unknown words of a text by pseudonyms, and other characters by ``_``."""
        replacement = partial(self._token, words=words, word=word)
        bare = re.sub(r"[^\x00-\x7f]|\d{7,}", "_", _IN_SCHEMAS.sub("_", text))
        return _TOKEN.sub(lambda match: replacement(match[0]), bare)

    def _token(self, text: str, words: frozenset[str], word: str) -> str:
        return text if text in words else self.pseudonym(text, word)


def number(value: Any) -> Any:  # noqa: ANN401
    """Return a finite number or truth value, ``None`` for any other value."""
    if isinstance(value, float):
        return value if abs(value) < float("inf") else None
    return value if isinstance(value, (bool, int)) else None
