"""Whatever a reader may call explains itself: every module, and every public function, class and method."""

import ast
import pathlib

import pytest

PACKAGE = pathlib.Path(__file__).parent.parent / "refimpl"
PUBLIC_FILES = [path for path in sorted(PACKAGE.rglob("*.py"))
                if all(not part.startswith("_") or part == "__init__.py" for part in path.relative_to(PACKAGE).parts)]


def undocumented(source):
    """Names of public definitions without a docstring; those inside functions are private by nature."""
    tree = ast.parse(source)
    found = [] if ast.get_docstring(tree) or not tree.body else ["the module"]
    places = [("", tree)]
    while places:
        prefix, place = places.pop()
        for node in place.body:
            definition = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            if definition and not node.name.startswith("_"):
                if not ast.get_docstring(node):
                    found.append(prefix + node.name)
                if isinstance(node, ast.ClassDef):
                    places.append((f"{prefix}{node.name}.", node))
    return sorted(found)


@pytest.mark.parametrize("path", PUBLIC_FILES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_everything_public_has_a_docstring(path):
    assert undocumented(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(("source", "names"), [
    ("", []),
    ("x = 1", ["the module"]),
    ('"""."""\ndef f(): pass', ["f"]),
    ('"""."""\nclass A:\n    def f(self): """."""\n    @property\n    def g(self): pass', ["A", "A.g"]),
    ('"""."""\ndef _f(): pass\nclass _A:\n    def f(self): pass', []),
    ('"""."""\ndef f():\n    """."""\n    def g(): pass', []),
    ('"""."""\nclass A:\n    """."""\n    def __init__(self): pass', []),
])
def test_a_missing_docstring_is_found(source, names):
    assert undocumented(source) == names
