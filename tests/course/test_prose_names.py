"""What prose names is there: modules, functions and their options, files, commands, exercises, and where links lead.

Read are the lessons' cells of text, the pages made of them, docs/*.md, README.md and CONTRIBUTING.md. Names of other
systems are theirs to keep: only what begins like something of ours is looked up.
"""

import ast
import importlib
import importlib.util
import inspect
import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

import refimpl
from refimpl import Layout, Mesh, collectives, commands, course, pipeline, run, testing
from refimpl.commands import Parser
from refimpl.course.exercises.catalogue import BY_NAME
from refimpl.course.quiz.questions import load
from refimpl.model.config import Config, init
from refimpl.parallel.zero import Zero

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "refimpl"
SKIPPED = {".git", ".venv", "build", "dist", "__pycache__"}
MODULES = {}                                                       # stem: [modules of that name]
for source in PACKAGE.rglob("*.py"):
    parts = source.relative_to(ROOT).with_suffix("").parts
    parts = parts[:-1] if parts[-1] == "__init__" else parts
    MODULES.setdefault(parts[-1], []).append(".".join(parts))
FILES = {path.name for folder in ("refimpl", "lessons", "exercises", "solutions", "tests", "docs")
         for path in (ROOT / folder).rglob("*")} | {path.name for path in ROOT.iterdir()}
NOT_OURS = {"yours.py", "program.py",                              # the reader's; Megatron's
            "parallel_state.py", "theoretical_memory_usage.py", "dist_optimizer.md"}
ATTRIBUTES = run(lambda comm: {"comm": dir(comm), "mesh": dir(Mesh(comm, Layout()))}, 1)[0]
PARAMETERS = {name for family in ("gpt2", "llama")                # blocks.0.attention.wo is written attention.wo, too
              for name in init(Config(family, 8, 8, 1, 2, context=8), np.random.default_rng(0))}
PLACEHOLDER = re.compile(r"[A-Z]{2,}")                             # NN_name.py, VERB.py
CALLABLE = {name: getattr(home, name) for home in (testing, pipeline, collectives, course, refimpl)
            for name in dir(home) if callable(getattr(home, name)) and not name.startswith("_")} | {"Zero": Zero}


# -- reading ----------------------------------------------------------------------------------------------------------

def pages():
    """{where: text} of all prose."""
    found = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
             for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]}
    for path in sorted((ROOT / "lessons").glob("*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        found[f"lessons/{path.name}"] = "\n\n".join(
            "".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    return found


PAGES = pages()
every_page = pytest.mark.parametrize("where", PAGES)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def without_fences(text):
    """Prose alone."""
    return FENCE.sub("", text)


def inline(text):
    """What stands between single backticks."""
    return re.findall(r"(?<!`)`([^`\n]+)`(?!`)", without_fences(text))


def command_lines(text):
    """Commands, inline, in blocks of text and in indented ones: without comments."""
    indented = re.findall(r"^ {4,}(\S.*)", text, re.MULTILINE)
    blocks = [line for language, block in FENCE.findall(text) if language in ("", "sh", "bash")
              for line in block.split("\n")]
    return [re.split(r"\s{2,}#| #", line)[0].strip() for line in (*inline(text), *indented, *blocks)]


# -- links ------------------------------------------------------------------------------------------------------------

def slugs(text):
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ +(.+?) *$", without_fences(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def dead_links(where, text, known=PAGES):
    """Links that lead nowhere."""
    found = []
    for target in re.findall(r"\]\(([^)\s]+)\)|\b(?:src|href)=\"([^\"]+)\"", without_fences(text)):
        target = "".join(target)
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (ROOT / where).parent / path if path else ROOT / where
        try:
            name = there.resolve().relative_to(ROOT).as_posix()
        except ValueError:
            found.append(f"{target} leads out of the project")
            continue
        if not there.exists():
            found.append(f"{target} is not there")
        elif anchor and anchor not in slugs(known.get(name, "")):
            found.append(f"{target}: there is no heading of that name")
    return found


@every_page
def test_every_link_leads_somewhere(where):
    found = dead_links(where, PAGES[where])
    assert not found, "\n".join(found)


# -- names ------------------------------------------------------------------------------------------------------------

def resolves(dotted):
    """Whether refimpl.a.b.c is a module, or something in one."""
    parts = dotted.split(".")
    for k in range(len(parts), 0, -1):
        try:
            thing = importlib.import_module(".".join(parts[:k]))
        except ModuleNotFoundError:
            continue
        for name in parts[k:]:
            if not hasattr(thing, name):
                return False
            thing = getattr(thing, name)
        return True
    return False


def unknown_dotted(code):
    """Names such as refimpl.cost.traffic, parallel.data.plan, tensor.row_parallel, comm.size that are not there."""
    for dotted in re.findall(r"(?<![\w./\"'-])[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+", code):
        first, _, rest = dotted.partition(".")
        if dotted.endswith((".py", ".md", ".txt", ".toml", ".ipynb", ".json", ".svg", ".sh")):
            continue
        if any(name == dotted or name.endswith(f".{dotted}") for name in PARAMETERS):
            continue
        if first == "refimpl":
            known = resolves(dotted)
        elif first in ATTRIBUTES:
            known = rest.partition(".")[0] in ATTRIBUTES[first]
        elif first in MODULES:
            known = any(resolves(f"{module}.{rest}") for module in MODULES[first])
        else:
            continue
        if not known:
            yield f"{dotted} is not there"


def unknown_files(code):
    """Paths that are not there: from the top, from refimpl/, or the bare name of any file."""
    for path in re.findall(r"(?<![\w/.:*-])[\w.-]+(?:/[\w.-]+)*(?:\.(?:py|ipynb|md|toml|txt)\b|/)(?![\w(/])", code):
        name = path.rstrip("/").rpartition("/")[2]
        if PLACEHOLDER.search(path.replace("README", "").replace("CONTRIBUTING", "")) or name in NOT_OURS:
            continue
        if not any((place / path).exists() for place in (ROOT, PACKAGE)) and not ("/" not in path and name in FILES):
            yield f"{path} is not there"


def unknown_in_calls(code):
    """Calls of ours with keywords they do not take; exercises and quizzes that there are not."""
    try:
        tree = ast.parse(code.strip().replace("...", "None"))
    except SyntaxError:
        return
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.func.id not in CALLABLE:
            continue
        name, takes = node.func.id, keywords(CALLABLE[node.func.id])
        first = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else None
        yield from (f"{name} takes no {keyword.arg}" for keyword in node.keywords
                    if keyword.arg and takes is not None and keyword.arg not in takes)
        if name in ("check", "hint") and isinstance(first, str) and first not in BY_NAME:
            yield f"there is no exercise {first}"


def keywords(function):
    """Names of a function's parameters; None where it takes any."""
    parameters = inspect.signature(function).parameters
    return None if any(p.kind is p.VAR_KEYWORD for p in parameters.values()) else set(parameters)


def not_there(text):
    """Everything that prose names and that is not there, in words."""
    found = [wrong for code in inline(text) if not is_command(code)
             for check in (unknown_dotted, unknown_files, unknown_in_calls) for wrong in check(code)]
    found += [f"exercise {number} is not there" for number in re.findall(r"\b[Ee]xercise (\d\d)\b", text)
              if int(number) not in {exercise.number for exercise in BY_NAME.values()}]
    for language, block in FENCE.findall(text):
        if language == "python":
            found += unknown_imports(block)
    return found


def unknown_imports(block):
    """Imports from refimpl in a block of Python that fail."""
    for node in ast.walk(ast.parse(block)):
        if isinstance(node, ast.ImportFrom) and node.module.partition(".")[0] == "refimpl":
            yield from (f"{node.module}.{alias.name} is not there" for alias in node.names
                        if not resolves(f"{node.module}.{alias.name}"))


@every_page
def test_every_name_in_prose_is_there(where):
    found = not_there(PAGES[where])
    assert not found, "\n".join(found)


# -- commands ---------------------------------------------------------------------------------------------------------

def parsers():
    """{verb: its options}"""
    found = {}
    for path in sorted(Path(commands.__path__[0]).glob("*.py")):
        if path.stem != "__init__":
            parser = Parser()
            importlib.import_module(f"refimpl.commands.{path.stem}").add_arguments(parser)
            found[path.stem.replace("_", "-")] = {word for action in parser._actions for word in action.option_strings}
    return found


OPTIONS = parsers()
OURS = re.compile(r"(?:\S*python3? -m (?:mpi4py -m )?refimpl|python3? start\.py)(?: |$)")


def is_command(code):
    """Whether a piece of code is a command of ours, or of pip's, git's and so on."""
    return bool(OURS.search(code) or re.match(r"(?:\S*python3?|pip|mpirun|torchrun|\.venv/\S+) ", code)
                or code.split()[0] in OPTIONS and len(code.split()) > 1)


def wrong_commands(line):
    """A command of ours with a verb or an option that there is not."""
    if module := re.search(r"python3? -m (refimpl\.[\w.]+)", line):
        if importlib.util.find_spec(module[1]) is None:
            yield f"{line}: there is no module {module[1]}"
        return
    found = OURS.search(line)
    if found:
        words = shlex.split(line[found.end():].replace("...", ""))
    elif line and line.split()[0] in OPTIONS and len(line.split()) > 1 and " --" in line:
        words = shlex.split(line.replace("...", ""))
    else:
        return
    if not words or PLACEHOLDER.fullmatch(words[0]) or words[0].startswith("-"):
        return
    verb = words[0]
    if verb == "test" and "start.py" in line:
        return
    if verb not in OPTIONS:
        yield f"{line}: there is no verb {verb}"
        return
    known = set().union(*(OPTIONS[word] for word in words if word in OPTIONS))
    yield from (f"{line}: {verb} has no {word}" for word in words[1:]
                if re.match(r"--\w", word) and word.partition("=")[0] not in known | {"--help"})


@every_page
def test_every_command_in_prose_has_its_verb_and_options(where):
    found = [wrong for line in command_lines(PAGES[where]) for wrong in wrong_commands(line)]
    assert not found, "\n".join(found)


# -- the checks themselves --------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("text", "found"), [
    ("See [a](nowhere.md).", ["nowhere.md is not there"]), ("[a](CONTRIBUTING.md#a-schedule)", []),
    ("[a](CONTRIBUTING.md#poems)", ["CONTRIBUTING.md#poems: there is no heading of that name"]),
    ("[a](../../etc/passwd)", ["../../etc/passwd leads out of the project"]), ("[a](https://x.org/y)", []),
    ('<img src="docs/no.svg">', ["docs/no.svg is not there"]), ("# One two\n[a](#one-two)", []), ("[a](#three)", [
        "#three: there is no heading of that name"])])
def test_a_dead_link_is_found_out(text, found):
    assert dead_links("README.md", text, PAGES | {"README.md": text}) == found


@pytest.mark.parametrize(("text", "found"), [
    ("`refimpl.cost.traffic` and `refimpl.layout.Layout`", []), ("`attention.wo`", []),
    ("`refimpl.cost.trafic`", ["refimpl.cost.trafic is not there"]),
    ("`tensor.row_parallel`, `tensor.diagonal`", ["tensor.diagonal is not there"]), ("`torch.nothing`", []),
    ("`comm.size`, `comm.sise`, `mesh.dp_cp`", ["comm.sise is not there"]),
    ("`collectives/ring.py`, `ring.py`, `model/`, `NN_name.py`, `7*(r+1)//P`", []),
    ("`collectives/rng.py`", ["collectives/rng.py is not there"]),
    ("`Zero(stage=1)`, `Zero(level=1)`", ["Zero takes no level"]), ('`hint("ring_all_reduce")`', []),
    ('`hint("ring")`', ["there is no exercise ring"]), ("exercise 99", ["exercise 99 is not there"]),
    ("```python\nfrom refimpl import Ledger, Legder\n```", ["refimpl.Legder is not there"])])
def test_a_name_that_is_not_there_is_found_out(text, found):
    assert not_there(text) == found


@pytest.mark.parametrize(("line", "found"), [
    ("python -m refimpl check --status", []), ("python -m refimpl chekc", ["there is no verb chekc"]),
    ("python3 start.py check --stats", ["check has no --stats"]), ("python3 start.py", []),
    ("python3 start.py test x", []), ("python -m refimpl launch -n 4 train --tp 4", []),
    ("python -m refimpl.course.rendr", ["there is no module"]), ("python -m refimpl VERB ...", []),
    ("bench all-reduce --ranks P", []), ("bench all-reduce --rnks P", ["bench has no --rnks"]),
    ("pip install -U x", [])])
def test_a_wrong_command_is_found_out(line, found):
    wrong = list(wrong_commands(line))
    assert len(wrong) == len(found) and all(part in whole for part, whole in zip(found, wrong))


def test_quizzes_that_lessons_ask_for_have_questions():
    asked = {"".join(pair) for text in PAGES.values()
             for pair in re.findall(r'quiz\("(\d\d)"\)|--lesson (\d\d)', text)}
    assert asked <= {question.lesson for question in load()}
