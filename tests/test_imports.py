"""The order of the house: imports go down only, without circles, and `import refimpl` stays light."""

import ast
import graphlib
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
PACKAGE = ROOT / "refimpl"

LEVELS = [                                       # low to high: modules import from lower levels and their own package
    {"arrays"},
    {"precision", "layout", "measure"},
    {"world", "model"},
    {"collectives", "pipeline", "device"},
    {"refimpl"},                                 # the package's own __init__: run, Ledger, Layout ...
    {"parallel", "cost"},
    {"diagnosis"},
    {"testing"},
    {"train"},
    {"course", "bench"},
    {"gpu"},
    {"commands"},
    {"__main__"},
]
LEVEL = {name: height for height, names in enumerate(LEVELS) for name in names}

FORBIDDEN = [                                    # (who, except, must not import): rules beyond the levels
    ("cost", {"refimpl.cost.planner"}, "numpy"),
    ("cost", set(), "refimpl.arrays"),
    ("cost", set(), "refimpl.world"),
    ("pipeline", {"refimpl.pipeline.runner"}, "refimpl.world"),
]


def module_name(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {module_name(path): path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py"))}


def imported(name, source, modules=SOURCES):
    """Modules that `name` imports, inside functions too; `from a import b` imports a.b if that is a module, else a."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                is_package = any(other.startswith(name + ".") for other in modules)
                here = name.split(".")[:len(name.split(".")) - node.level + is_package]
                base = ".".join([*here, *([base] if base else [])])
            found |= {f"{base}.{alias.name}" if f"{base}.{alias.name}" in modules else base for alias in node.names}
    return found


def component(module):
    """The part of the house a module belongs to: `world` for refimpl.world.local, `refimpl` for the package itself."""
    return module.split(".")[1] if "." in module else module


def faults(name, source, modules=SOURCES):
    """Imports of one module that go up or sideways, or that a rule forbids."""
    own, found = component(name), []
    for other in sorted(imported(name, source, modules)):
        if other.partition(".")[0] == "refimpl" and component(other) != own:
            if component(other) not in LEVEL:
                found.append(f"{name} imports {other}, which has no place in LEVELS")
            elif LEVEL[component(other)] >= LEVEL[own]:
                found.append(f"{name} imports {other}, which is not below {own}")
        for who, excepted, what in FORBIDDEN:
            if own == who and name not in excepted and (other == what or other.startswith(what + ".")):
                found.append(f"{name} imports {other}, which {who} must not")
    return found


@pytest.mark.parametrize("name", SOURCES)
def test_imports_go_down_only(name):
    assert component(name) in LEVEL, f"{name} has no place in LEVELS: add {component(name)} to the level it belongs to"
    assert not faults(name, SOURCES[name])


def test_no_modules_import_each_other_in_a_circle():
    graph = {name: imported(name, source) & SOURCES.keys() for name, source in SOURCES.items()}
    list(graphlib.TopologicalSorter(graph).static_order())           # raises CycleError, which names the circle


@pytest.mark.parametrize(("name", "source", "says"), [
    ("refimpl.model.mlp", "from refimpl.world import run", "refimpl.world, which is not below model"),
    ("refimpl.model.mlp", "def f():\n    import refimpl.parallel.zero", "refimpl.parallel.zero, which is not below"),
    ("refimpl.arrays", "from refimpl import run", "refimpl, which is not below arrays"),
    ("refimpl.world.local", "from refimpl import model", "refimpl.model, which is not below world"),
    ("refimpl.world.local", "from ..collectives import ring", "refimpl.collectives.ring, which is not below world"),
    ("refimpl.layout", "from .measure import ledger", "refimpl.measure.ledger, which is not below layout"),
    ("refimpl.cost.traffic", "import numpy.linalg", "numpy.linalg, which cost must not"),
    ("refimpl.cost.traffic", "from refimpl.arrays import to_host", "refimpl.arrays, which cost must not"),
    ("refimpl.pipeline.check", "from refimpl.world import run", "refimpl.world, which pipeline must not"),
    ("refimpl.train.stage", "from refimpl import novelty", "refimpl.novelty, which has no place in LEVELS"),
])
def test_an_import_that_goes_up_is_found(name, source, says):
    modules = {"refimpl.model", "refimpl.collectives.ring", "refimpl.measure.ledger", "refimpl.novelty"}
    assert [says in fault for fault in faults(name, source, modules)] == [True]


@pytest.mark.parametrize(("name", "source"), [
    ("refimpl.model.mlp", "import numpy\nfrom refimpl.arrays import to_host\nfrom refimpl.model import layers"),
    ("refimpl.testing", "from refimpl import run\nfrom refimpl.diagnosis import likely_cause"),
    ("refimpl", "from refimpl.world import run\nfrom refimpl.layout import Layout"),
    ("refimpl.cost.planner", "import numpy"),
    ("refimpl.pipeline.runner", "from refimpl.world import run"),
])
def test_imports_that_go_down_are_no_fault(name, source):
    assert faults(name, source) == []


def test_import_refimpl_is_light():
    """What only some commands need is imported by them, not by everybody."""
    heavy = ["IPython", "ipykernel", "ipywidgets", "jupyterlab", "nbformat", "matplotlib", "mpi4py", "cupy", "scipy"]
    code = f"import sys, refimpl; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
