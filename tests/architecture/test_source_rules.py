"""Rules of the house that no linter knows: sizes, names, docstrings, and words that must not leak in."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

from packaging.requirements import Requirement

from dflash.contract.config import all_knobs

root = Path(__file__).parents[2]
packages = ("dflash", "profiler", "autotune", "reports", "cli")
sources = sorted(path for package in packages for path in (root / package).rglob("*.py"))
tests = sorted((root / "tests").rglob("*.py"))

file_line_ceiling = 500
function_line_ceiling = 60
vague_names = re.compile(r"(^|_)(utils?|helpers?|common|managers?|misc)(_|$)")


def name_of(path: Path) -> str:
    return path.relative_to(root).as_posix()


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def tracked_files() -> list[Path]:
    """What git knows, or, outside a checkout, every file but caches and environments."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, check=False)
    if listed.returncode == 0:
        return [root / name for name in listed.stdout.decode().split("\0") if name]
    return [p for p in root.rglob("*") if p.is_file() and not any(q.startswith(".venv") for q in p.parts)]


def test_there_are_sources() -> None:
    assert len(sources) > 20
    assert len(tests) > 5


def test_files_are_short_enough() -> None:
    lines = {name_of(path): len(path.read_text(encoding="utf-8").splitlines()) for path in [*sources, *tests]}
    assert {name: count for name, count in lines.items() if count > file_line_ceiling} == {}


def test_functions_are_short_enough() -> None:
    lines = {
        f"{name_of(path)}:{node.lineno} {node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for path in sources
        for node in ast.walk(parse(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert {name: count for name, count in lines.items() if count > function_line_ceiling} == {}


def test_every_module_says_what_it_is() -> None:
    assert [name_of(path) for path in sources if not ast.get_docstring(parse(path))] == []


def test_no_module_has_a_vague_name() -> None:
    assert [name_of(p) for p in [*sources, *tests] if vague_names.search(p.stem)] == []


def test_package_roots_hold_only_a_docstring() -> None:
    for package in packages:
        assert len(parse(root / package / "__init__.py").body) == 1, package


def test_tests_have_no_packages() -> None:
    # importlib mode: an __init__.py would give two tests of one name one module.
    assert list((root / "tests").rglob("__init__.py")) == []


def test_no_path_of_a_developer_machine_is_in_the_tree() -> None:
    # Spelled in pieces, so that this file does not find itself.
    forbidden = re.compile(
        "|".join(("/" + "work/", "/" + "home/[a-z]+/", "/" + "Users/[a-z]+/", r"\.\./" + "shared")).encode()
    )
    found = [
        f"{name_of(path)}: {match.group().decode()}"
        for path in tracked_files()
        if path.is_file() and (match := forbidden.search(path.read_bytes()))
    ]
    assert found == []


def imported_distributions() -> set[str]:
    """Distributions that the sources import, whether at the top or inside a function."""
    owners = packages_distributions()
    found: set[str] = set()
    for path in sources:
        for node in ast.walk(parse(path)):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            for name in (n.partition(".")[0] for n in names):
                if name not in sys.stdlib_module_names and name not in packages:
                    found |= {d.lower().replace("_", "-") for d in owners.get(name, [name])}
    return found


def declared(group: str | None = None) -> set[str]:
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    listed = project["dependencies"] if group is None else project["optional-dependencies"][group]
    return {Requirement(text).name.lower() for text in listed}


def test_every_import_is_a_declared_dependency() -> None:
    optional = {"flash-attn", "fla", "fla-core", "flash-linear-attention", "causal-conv1d"}
    trackers = declared("trackers") | declared("wandb") | declared("trackio")
    assert imported_distributions() - declared() - optional - trackers == set()


def test_every_declared_dependency_is_used() -> None:
    run_as_a_program = {"py-spy"}
    assert declared() - imported_distributions() - run_as_a_program == set()


def test_every_declared_dependency_is_pinned() -> None:
    pins = (root / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {line.partition("==")[0].lower().replace("_", "-") for line in pins if "==" in line}
    assert (declared() | declared("dev")) - pinned == set()


def test_settings_that_texts_advise_exist() -> None:
    """`section.knob=value` in a message must be something a reader can set."""
    sections = "|".join({knob.path.partition(".")[0] for knob in all_knobs})
    setting = re.compile(rf"(?<![\w./])((?:{sections})\.[a-z_]+)=")
    advised = {
        (name_of(path), found)
        for path in sources
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for found in setting.findall(node.value)
    }
    assert len(advised) > 10
    assert advised <= {(name, knob.path) for name, _ in advised for knob in all_knobs}
