"""Federated learning that finds its own step sizes."""

import gc as _gc
import importlib as _importlib
import pkgutil as _pkgutil
from types import ModuleType as _ModuleType
from typing import TYPE_CHECKING, Any

import fedstride._moved

if TYPE_CHECKING:
    from fedstride._public import *

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import PyTorch and the library when a name is first used: the command line answers without them."""
    if not name.startswith("_"):
        if any(name == module.name for module in _pkgutil.iter_modules(__path__)):
            return _imported(f"{__name__}.{name}")
        public = _names()
        if name in public:
            globals().update(public)
            return public[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*_names(), "__version__"]


def _names() -> dict[str, Any]:
    public = vars(_imported(f"{__name__}._public"))
    return {name: value for name, value in public.items() if not name.startswith("_")}


def _imported(name: str) -> _ModuleType:
    """Import a module without garbage collection, which would search PyTorch's objects again and again."""
    collecting = _gc.isenabled()
    _gc.disable()
    try:
        return _importlib.import_module(name)
    finally:
        if collecting:
            _gc.enable()
