"""Names that stand for those of the program, the same in all files of one run."""

from __future__ import annotations

import hashlib
import hmac
import re
from functools import partial
from typing import Any

from irgraph.anonymise import public
from irgraph.capture.kineto.events.families import SIGN, family_of
from irgraph.capture.kineto.reading.trace import EventKind
from irgraph.ir.dtypes import ITEMSIZE, TORCH

_EVALUATE = "autograd::engine::evaluate_function: "
_PREFIXES = (
    _EVALUATE, "torch::autograd::", "nn.Module: ", "module::", "irgraph.module#",
    "irgraph.origin#", "[pytorch|profiler|", "Optimizer.step#", "Optimizer.zero_grad#",
    "Optimizer.", "enumerate(DataLoader)", "label ", "autograd.",
)  # fmt: skip
"""What other commands tell ranges by; it stays in front of a new name."""

_TRAITS = ("StreamWaitEvent", "Wait Event", "Event", "Stream", "Context", "ynchronize")
"""What other commands tell waits by; it stays behind a new name."""

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
    """Renames the same way in every file it is given, so that they still belong together.

    Attributes:
        names: new names of what was renamed.
        key: where given, new names are hashes of the old ones with it, else numbers.
    """

    def __init__(self, key: str = "") -> None:
        self.names: dict[str, str] = {}
        self.key = key
        self._numbers: dict[object, int] = {}
        self._kernels: dict[str, str] = {}

    def stand_in(self, text: str, word: str = "name") -> str:
        """Return what stands for a name of the program."""
        if not self.key:
            return self.names.setdefault(text, f"{word}{len(self.names) + 1}")
        given = text.encode("utf-8", "surrogatepass")
        found = hmac.new(self.key.encode("utf-8", "surrogatepass"), given, hashlib.sha256)
        return self.names.setdefault(text, f"{word}_{found.hexdigest()[:12]}")

    def name(self, text: str) -> str:
        """Return the name of a range: an operator, an autograd node or a label."""
        if public.is_label(text):
            return text
        prefix = next((known for known in _PREFIXES if text.startswith(known)), "")
        rest = text[len(prefix) :]
        if prefix in (_EVALUATE, "torch::autograd::", "autograd."):
            return prefix + self.node(rest)
        if prefix:
            return prefix + self.stand_in(rest)
        if text.startswith("triton"):
            return self.kernel(text)
        return self.operator(text) if _OPERATOR.fullmatch(text) else self.node(text)

    def node(self, text: str) -> str:
        """Return the name of an autograd node; that of another range stands for itself."""
        if public.is_label(text) or public.is_node(text):
            return text
        if text.startswith("torch::autograd::"):
            return self.name(text)
        return self.stand_in(text) + ("Backward0" if _BACKWARD.fullmatch(text) else "")

    def operator(self, text: str) -> str:
        """Return the name of an operator, spelled ``aten::add`` or ``aten.add``."""
        found = _OPERATOR.fullmatch(text)
        if found is None:
            return self.stand_in(text)
        dotted = text.replace("::", ".")
        if dotted in public.operators():
            return text
        library, mark = found[1], found[2]
        if library == "autograd":
            return library + mark + self.node(text[len(library + mark) :])
        library = library if library in public.libraries() else "private"
        end = "_" if text.endswith("_") and not text.endswith("__") else ""
        return f"{library}{mark}{self.stand_in(dotted)}{end}"

    def call(self, text: str) -> str:
        """Return the name of a runtime function or of a record of waiting."""
        if text in public.listed("calls") or public.is_label(text):
            return text
        return self.stand_in(text) + "".join(f" {kept}" for kept in _TRAITS if kept in text)

    def kernel(self, text: str, kind: int = EventKind.KERNEL) -> str:
        """Return the name of a kernel with the public words in it; its family stays."""
        if text not in self._kernels:
            bare = _IN_KERNELS.sub("_", text)
            made = public.PIECE.sub(self._piece, re.sub(r"[^\x00-\x7f]", "_", bare))
            family = family_of(text, kind)
            same = family_of(made, kind) == family
            signed = f"{SIGN[family]} {made}" if family in SIGN else self.stand_in(text)
            self._kernels[text] = made if same else signed
        return self._kernels[text]

    def _piece(self, found: re.Match[str]) -> str:
        return found[0] if public.is_piece(found[0]) else self.stand_in(found[0], "w")

    def schema(self, text: str) -> str:
        """Return a schema under its operator's new name, with the words of public schemas."""
        head, mark, rest = text.partition("(")
        if not mark:
            return self.stand_in(text) if text else ""
        name, dot, overload = head.partition(".")
        made = self.operator(name)
        if overload:
            made += dot + self._token(overload, public.argument_words(), "form")
        return made + mark + self._worded(rest, public.argument_words(), "arg")

    def argument(self, text: str) -> str:
        """Return the name of an operator's argument."""
        return self._token(text, public.argument_words(), "arg")

    def text(self, text: str) -> str:
        """Return a text among an event's arguments or a node's values."""
        if not text or text in public.listed("values") or text in _WORDS:
            return text
        if _NUMBER.fullmatch(text) or _DEVICE.fullmatch(text) or _RANKS.fullmatch(text):
            return text
        words = public.listed("values")
        if _TYPE.fullmatch(text) or all(word in words for word in text.split(" ")):
            return self._worded(text, words, "type")
        return self.stand_in(text)

    def value(self, value: Any) -> Any:  # noqa: ANN401
        """Return an argument: numbers stay, texts are filtered, unknown objects are left out."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return list(map(self.value, value))
        return None if isinstance(value, dict) else number(value)

    def card(self, text: str) -> str:
        """Return the name of a card."""
        return text if public.is_card(text) else self.stand_in(text, "card")

    def number(self, value: Any) -> Any:  # noqa: ANN401
        """Return a process or thread counted from 1; words of the format stay."""
        if isinstance(value, str) and (
            value in ("", "Spans", "Traces") or _NUMBER.fullmatch(value)
        ):
            return value if not value.lstrip("-").isdecimal() else self._count(int(value))
        if isinstance(value, str):
            return self.stand_in(value)
        return self._count(value) if isinstance(value, int) and value else number(value)

    def _count(self, value: int) -> int:
        return self._numbers.setdefault(value, len(self._numbers) + 1) if value else value

    def _worded(self, text: str, words: frozenset[str], word: str) -> str:
        """Return a text whose unknown words are replaced, and whose other marks are left out."""
        parts = partial(self._token, words=words, word=word)
        bare = re.sub(r"[^\x00-\x7f]|\d{7,}", "_", _IN_SCHEMAS.sub("_", text))
        return _TOKEN.sub(lambda found: parts(found[0]), bare)

    def _token(self, text: str, words: frozenset[str], word: str) -> str:
        return text if text in words else self.stand_in(text, word)


def number(value: Any) -> Any:  # noqa: ANN401
    """Return a number or truth value, and nothing for what is neither or not finite."""
    if isinstance(value, float):
        return value if abs(value) < float("inf") else None
    return value if isinstance(value, (bool, int)) else None
