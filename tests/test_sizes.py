"""Sizes: files of at most 350 lines, functions of at most 60 beside their signature and docstring, few modules at the top."""

from __future__ import annotations

import ast
from pathlib import Path

import fedstride

PACKAGE = Path(fedstride.__file__).parent
FILE, FUNCTION, TOP = 350, 60, 8


def lines_of(function: ast.FunctionDef) -> int:
    first = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return function.end_lineno - first[0].lineno + 1 if first else 0


def test_files_and_functions_can_be_read_at_a_glance():
    large = []
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text()
        count = len(text.splitlines())
        large += [f"{path.relative_to(PACKAGE)}: {count} lines"] if count > FILE else []
        large += [
            f"{path.relative_to(PACKAGE)}: {node.name} has {lines_of(node)} lines"
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.FunctionDef) and lines_of(node) > FUNCTION
        ]
    assert large == []


def test_few_modules_are_at_the_top_of_the_package():
    assert len(list(PACKAGE.glob("*.py"))) <= TOP
