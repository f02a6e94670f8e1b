"""Splits: what the word says, and what is no split."""

from __future__ import annotations

import pytest

from dflash.contract.config import load_config
from dflash.contract.errors import ConfigError
from dflash.contract.split import Split


@pytest.mark.parametrize(
    ("text", "split", "devices"),
    [
        ("3-1", Split(3, 1), 4),
        ("2-2", Split(2, 2), 4),
        ("colocated-1", Split(1, 1, colocated=True), 1),
        ("colocated-12", Split(12, 12, colocated=True), 12),
    ],
)
def test_a_split_is_read_as_it_is_written(text: str, split: Split, devices: int) -> None:
    assert Split.parse(text) == split
    assert str(split) == text
    assert split.devices == devices


@pytest.mark.parametrize(
    "text", ["", "3", "0-1", "1-0", "3-1-1", "colocated", "colocated-0", "colocated-1-1", "²-1"]
)
def test_anything_else_is_refused_with_both_forms(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a split") as caught:
        Split.parse(text)
    assert "colocated-DEVICES" in str(caught.value.expected)


def test_roles_that_share_need_fewer_devices() -> None:
    def devices(*changes: str) -> int:
        return load_config(None, ["window.tokens=65536", *changes]).device_count

    assert devices("split=2-2") == 4
    assert devices("split=2-2", "devices.gpus=2") == 2
    assert devices("split=1-1", "devices.gpus=8") == 2
    assert devices("split=colocated-3") == 3


def test_a_colocated_split_has_its_own_transport_and_refuses_another() -> None:
    paths = {"host": "peer", "shared": "peer", "pinned": "peer", "peer": "peer", "auto": "auto"}
    for preset, path in paths.items():
        choice = load_config(None, ["split=colocated-2", f"transport={preset}"]).transport_choice
        assert (choice.queue, choice.path, choice.dispatch) == ("per_drafter", path, "local")
    for override in ("queue=shared", "path=pinned", "dispatch=least_depth"):
        with pytest.raises(ConfigError, match="copies nothing") as caught:
            load_config(None, ["split=colocated-2", f"transport.{override}"])
        assert caught.value.where == f"transport.{override.partition('=')[0]}"
    load_config(None, ["split=colocated-2", "transport.dispatch=local"])
    assert load_config(None, ["split=colocated-2", "transport.path=auto"]).transport_choice.path == "auto"
