"""Callable packages: both ``irgraph.capture(...)`` and ``import irgraph.capture.live``.

A package and the function that is its main job would otherwise need two names, or one would hide
the other. A module's class may be replaced by one with more behaviour (Python's data model,
"Customizing module attribute access").
"""

from __future__ import annotations

import inspect
import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class CallableModule(ModuleType):
    """A package that calls the function of its name in the module ``home``."""

    home: str

    def function(self) -> Any:  # noqa: ANN401  (a function of any type)
        """Return the function."""
        return getattr(import_module(self.home), self.__name__.rpartition(".")[2])

    def __call__(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401  (as the function has)
        """Call the function."""
        return self.function()(*args, **options)

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        """The function's signature and documentation, for ``help``."""
        name = self.__name__.rpartition(".")[2]
        return f"{name}{self.__signature__}\n\n{inspect.getdoc(self.function())}"

    @property
    def __signature__(self) -> inspect.Signature:
        """The function's signature, for help and completion."""
        return inspect.signature(self.function())


def make_callable(name: str, home: str) -> None:
    """Turn a package into a callable one, for the function of its name in the module ``home``."""
    module = sys.modules[name]
    module.__class__ = CallableModule
    module.home = home  # type: ignore[attr-defined]
