"""Old names of modules and classes: they work for one more release, with a warning."""

import importlib
import sys
import warnings
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

INTO = {
    "core": "rows model losses errors normalise",
    "algorithm": "recipes sampling privacy",
    "engine": "faults processor",
    "training": "guard history checkpoint result",
    "app": "config loggers cli report diagnose deploy",
    "research": "papers bench verify",
}
RENAMED = (
    "client.plan=client.context client.site=client.chunk work=client.exchange wire.code=wire.sparse wire.message=core.message "
    "engine.door=engine.admission engine.pace=engine.worker_count engine.link=engine.torchrun.process_group "
    "run=training.train check=training.validate job=app.run_folder study=app.sweep live=app.progress"
)
MOVED = {name: f"{package}.{name}" for package, names in INTO.items() for name in names.split()}
MOVED |= dict(pair.split("=") for pair in RENAMED.split())
MOVED = {f"fedstride.{old}": f"fedstride.{new}" for old, new in MOVED.items()}


class Moved:
    """Finds modules by their old names. It comes first, so that a submodule of a moved package is not loaded twice."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        old = name
        while old not in MOVED:  # the module itself, or a package around it
            old = old.rpartition(".")[0]
            if not old:
                return None
        new = MOVED[old] + name.removeprefix(old)
        warnings.warn(f"{name} is now {new}; the old name goes in the next release.", DeprecationWarning, stacklevel=2)
        return ModuleSpec(name, self, origin=new)  # type: ignore[arg-type]

    create_module = staticmethod(lambda spec: None)

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = importlib.import_module(module.__spec__.origin)  # type: ignore[union-attr, arg-type]


def renamed(module: str, **names: Any) -> Callable[[str], Any]:
    """Return a module's __getattr__ that finds objects by their old names."""

    def find(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        new = names[name].__qualname__
        warnings.warn(f"{module}.{name} is now {new}; the old name goes in the next release.", DeprecationWarning, 2)
        return names[name]

    return find


sys.meta_path.insert(0, Moved())
