"""requirements.txt, pyproject.toml and constraints.txt say the same."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def lines(name):
    """The requirements in a file, without comments, options and spaces."""
    stripped = (re.sub(r"#.*|\s", "", line) for line in (ROOT / name).read_text().splitlines())
    return [line for line in stripped if line and not line.startswith("-")]


def name(requirement):
    return re.match(r"[\w.-]+", requirement)[0].lower().replace("_", "-")


def test_requirements_are_the_packages_own_and_those_of_its_extras():
    extras = PROJECT["optional-dependencies"]
    declared = PROJECT["dependencies"] + [r for extra in ("mpi", "course", "dev") for r in extras[extra]]
    assert sorted(lines("requirements.txt")) == sorted(r.replace(" ", "") for r in declared)
    assert lines("requirements-gpu.txt") == [r.replace(" ", "") for r in extras["gpu"]]


def test_every_requirement_has_a_range_and_every_one_is_pinned():
    pinned = {name(line) for line in lines("constraints.txt")}
    for requirement in lines("requirements.txt"):
        assert ">=" in requirement and "<" in requirement, requirement
        assert name(requirement) in pinned
    assert all("==" in line.split(";")[0] for line in lines("constraints.txt"))


def test_only_one_python_is_the_oldest():
    assert PROJECT["requires-python"] == ">=3.11"
    assert "OLDEST = (3, 11)" in (ROOT / "start.py").read_text()
