"""What help and README promise exists, and every flag that exists is tried by a test."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer.main

from cli import dflash_profile, dflash_train, dflash_tune
from cli.console import Program

root = Path(__file__).parents[3]
programs: dict[str, Program] = {
    "dflash-train": dflash_train.program,
    "dflash-profile": dflash_profile.program,
    "dflash-tune": dflash_tune.program,
}


def flags_of(name: str) -> dict[str, set[str]]:
    """{subcommand: its flags} of an installed command."""
    group = typer.main.get_command(programs[name].app)
    subcommands: dict[str, object] = getattr(group, "commands")  # noqa: B009 - typer's own group type
    return {
        subcommand: {
            option
            for parameter in getattr(command, "params", ())
            for option in parameter.opts
            if option.startswith("-")
        }
        for subcommand, command in subcommands.items()
    }


def promised_lines() -> list[str]:
    """The command lines in README, Makefile and docs that start one of our commands."""
    pages = [root / "README.md", root / "Makefile", *sorted((root / "docs").rglob("*.md"))]
    pattern = re.compile(r"(?:^\$ |\$\(BIN\)/|-- )(dflash-(?:train|profile|tune) [^\n#`|]*)", re.MULTILINE)
    return [line.strip() for page in pages for line in pattern.findall(page.read_text(encoding="utf-8"))]


def test_there_are_promises() -> None:
    assert len(promised_lines()) >= 8


@pytest.mark.parametrize("line", promised_lines())
def test_a_documented_line_names_what_exists(line: str) -> None:
    name, subcommand, *rest = shlex.split(line)
    known = flags_of(name)
    assert subcommand in known
    own = rest[: rest.index("--")] if "--" in rest else rest
    assert {word.partition("=")[0] for word in own if word.startswith("--")} <= known[subcommand]


@pytest.mark.parametrize("name", programs)
def test_every_flag_is_tried_by_a_test(name: str) -> None:
    here = root / "tests/unit/cli"
    pages = [here / f"test_{name.replace('-', '_')}.py", *here.glob("test_*_command.py")]
    tests = "".join(page.read_text(encoding="utf-8") for page in pages)
    for subcommand, flags in flags_of(name).items():
        assert f'"{subcommand}"' in tests
        assert [flag for flag in flags if f'"{flag}"' not in tests] == [], subcommand
