"""Operators are written once for NumPy and CuPy: they call only what both have. Read from the source, without a GPU."""

import ast
import pathlib

import numpy as np
import pytest
from fake_cupy import MISSING_KEYWORDS, NAMES, UFUNC_KEYWORDS

PACKAGE = pathlib.Path(__file__).parent.parent / "refimpl"

OPERATORS = ["collectives", "model", "parallel", "pipeline"]         # whose modules handle device arrays: add new ones
MAY_IMPORT_NUMPY = {"model/text.py",                      # reads data, on the host
                    "model/finite_differences.py"}        # a measuring tool: its numbers end on the host

FILES = [path for package in OPERATORS for path in sorted((PACKAGE / package).rglob("*.py"))]


def faults(source, may_import_numpy=False):
    """What in this source does not work, or not in the same way, on both libraries: a list of lines."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            for library in {name.partition(".")[0] for name in names} & {"numpy", "cupy", "cupyx"}:
                if library != "numpy" or not may_import_numpy:
                    found.append(f"line {node.lineno}: imports {library}; use xp = array_namespace(x)")
        elif isinstance(node, ast.Attribute) and is_xp(node.value) and node.attr not in NAMES:
            found.append(f"line {node.lineno}: xp.{node.attr} is not in both NumPy 2 and CuPy 14")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name, of_xp = node.func.attr, is_xp(node.func.value)
            given = {keyword.arg for keyword in node.keywords} - {None}
            bad = given & MISSING_KEYWORDS.get(name, set()) if of_xp or hasattr(np.ndarray, name) else set()
            if of_xp and isinstance(getattr(np, name, None), np.ufunc):
                bad = given - UFUNC_KEYWORDS
            found += [f"line {node.lineno}: CuPy's {name} has no {keyword}=" for keyword in sorted(bad)]
    return found


def is_xp(node):
    """Whether the expression is an array library: the name xp, or a call of array_namespace."""
    return getattr(node, "id", None) == "xp" or (
        isinstance(node, ast.Call) and getattr(node.func, "id", None) == "array_namespace")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_operators_use_only_what_numpy_and_cupy_share(path):
    found = faults(path.read_text(encoding="utf-8"), path.relative_to(PACKAGE).as_posix() in MAY_IMPORT_NUMPY)
    assert not found, "\n".join([str(path), *found])


def test_the_exceptions_exist():
    assert all((PACKAGE / name).is_file() for name in MAY_IMPORT_NUMPY)


def test_the_list_of_names_is_numpys_too():
    assert sorted(name for name in NAMES if not hasattr(np, name)) == []
    assert NAMES >= {"exp", "where", "concat", "einsum", "take_along_axis"}
    assert not NAMES & {"random", "linalg", "errstate", "unstack", "vecdot"}


@pytest.mark.parametrize(("source", "says"), [
    ("import numpy as np", "imports numpy"),
    ("from numpy import exp", "imports numpy"),
    ("import numpy.linalg", "imports numpy"),
    ("def f():\n    import cupy", "line 2: imports cupy"),
    ("y = xp.vecdot(x, x)", "xp.vecdot is not in both"),
    ("y = xp.random.default_rng(0)", "xp.random"),
    ("y = array_namespace(x).unstack(x)", "xp.unstack"),
    ("y = xp.sum(x, where=m)", "CuPy's sum has no where="),
    ("y = x.max(axis=0, initial=0)", "CuPy's max has no initial="),
    ("y = xp.exp(x, where=m)", "CuPy's exp has no where="),
    ("y = xp.argsort(x, stable=True)", "CuPy's argsort has no stable="),
    ("y = xp.stack(arrays=[x, y])", "CuPy's stack has no arrays="),
])
def test_a_fault_is_found(source, says):
    assert [says in fault for fault in faults(source)] == [True]


@pytest.mark.parametrize("source", [
    "from refimpl.arrays import array_namespace\nxp = array_namespace(x)\ny = xp.exp(x, out=x)",
    "y = xp.sum(x, axis=-1, keepdims=True) + x.sum(axis=0)",
    "data = text.load(encoding='utf-8')",
])
def test_good_code_has_no_faults(source):
    assert faults(source) == []
