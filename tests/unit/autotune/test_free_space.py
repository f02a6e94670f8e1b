"""Spaces of any names, and what is known of the pipeline where the names are ours."""

import pytest

from autotune.free_space import FreeSpace
from dflash.contract.errors import ConfigError

ours = {
    "pipeline.split": ["3-1", "colocated-2"],
    "pipeline.token_budget": [1024, 2048],
    "transport.preset": ["shared", "pinned"],
    "transport.depth": [1, 4],
}


def test_what_is_not_allowed_is_no_configuration_and_says_why():
    space = FreeSpace({"a": [1, 2], "b": ["x", "y"]}, allowed=lambda v: v["a"] == 1 or "a is too big")
    assert space.configurations == ({"a": 1, "b": "x"}, {"a": 1, "b": "y"})
    assert space.baseline == {"a": 1, "b": "x"}
    assert space.why_not({"a": 2, "b": "x"}) == "a is too big"
    assert "none of its choices" in space.why_not({"a": 3, "b": "x"})
    assert "names a" in space.why_not({"a": 1})


def test_a_baseline_outside_is_refused():
    with pytest.raises(ConfigError, match="cannot run"):
        FreeSpace({"a": [1, 2]}, baseline={"a": 3})
    with pytest.raises(ConfigError, match="no configuration"):
        FreeSpace({"a": [1, 2]}, allowed=lambda v: False)
    with pytest.raises(ConfigError, match="each once"):
        FreeSpace({"a": [1, 1]})


def test_our_names_make_a_setting():
    space = FreeSpace(ours)
    setting = space.setting(space.configurations[0])
    assert (setting.targets, setting.drafters, setting.depth, setting.token_budget) == (3, 1, 1, 1024)
    assert (setting.shared_queue, setting.path, setting.dispatch) == (True, "peer", "round_robin")
    together = space.setting({**space.baseline, "pipeline.split": "colocated-2"})
    assert together.shares_devices
    assert together.dispatch == "local"


def test_other_names_have_no_setting_unless_it_is_given():
    assert FreeSpace({"colour": ["red"]}).setting({"colour": "red"}) is None
    assert FreeSpace({"pipeline.split": ["odd"]}).setting({"pipeline.split": "odd"}) is None
    given = FreeSpace(ours).setting(FreeSpace(ours).baseline)
    assert FreeSpace({"colour": ["red"]}, setting=lambda values: given).setting({"colour": "red"}) == given
