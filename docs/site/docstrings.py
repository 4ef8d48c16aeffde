"""For mkdocstrings: the section "Example:" of our docstrings holds code, as "Examples:" does."""

from __future__ import annotations

from typing import Any

from griffe import Extension, Object


class Examples(Extension):
    """Rename the section while the source is read."""

    def on_instance(self, *, obj: Object, **kwargs: Any) -> None:
        if obj.docstring:
            obj.docstring.value = obj.docstring.value.replace("\nExample:\n", "\nExamples:\n")
