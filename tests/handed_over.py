"""What a `dflash-train` command asks of the process that it becomes."""

from __future__ import annotations

import pytest

from cli.dflash_train import program


def handed_over(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> list[str]:
    """The arguments of `python -m dflash` that a command line comes to; nothing is started."""

    def become(_path: str, command: list[str]) -> None:
        raise StopIteration(command)

    monkeypatch.setattr("os.execv", become)
    with pytest.raises(StopIteration) as stopped:
        program.app(list(arguments), standalone_mode=False)
    assert stopped.value.value[1:4] == ["-P", "-m", "dflash"]
    return list(stopped.value.value[4:])
