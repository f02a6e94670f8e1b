"""What may be varied, and which combinations cannot run."""

import pytest

from autotune.arithmetic import Limits
from autotune.space import Dimension, SearchSpace, too_large, trains_the_same
from dflash.contract.errors import ConfigError, DeviceError, DFlashError


def test_knob_that_changes_the_training_signal_is_refused():
    with pytest.raises(ConfigError, match="changes what is trained"):
        Dimension("window.tokens", (1024, 2048))


def test_it_is_varied_where_that_was_asked_for():
    assert Dimension("window.tokens", (1024, 2048), changes_training=True).choices == (1024, 2048)


@pytest.mark.parametrize(
    "path",
    [
        "devices.link_gigabytes_per_s",
        "devices.kind",
        "run.epochs",
        "run.deterministic",
        "data.path",
        "drafter.taps",
    ],
)
def test_what_a_machine_or_run_is_cannot_be_searched(path):
    with pytest.raises(ConfigError, match="cannot be searched"):
        Dimension(path, (1, 2), changes_training=True)


def test_choices_get_their_knobs_type_and_path():
    assert Dimension("switch_interval_ms", (1, 5)).choices == (1.0, 5.0)
    assert Dimension("split", ("1-1",)).path == "pipeline.split"


def test_choices_are_checked_as_the_knob_is():
    with pytest.raises(ConfigError, match=r"transport\.preset"):
        Dimension("transport.preset", ("peer", "pear"))


def test_start_outside_the_space_is_refused(space_of):
    with pytest.raises(ConfigError, match="outside the search space"):
        space_of(transport__preset=("peer", "pinned"))


def test_impossible_combinations_say_why_and_are_not_among_the_configurations(space):
    too_big = {"pipeline.split": "1-2", "pipeline.token_budget": 4096, "transport.preset": "peer"}
    assert "a window must hold" in space.why_not(too_big)
    assert too_big not in space.configurations
    # 36 less those of that split and budget, and less shared queues that only one drafter takes from
    assert space.size == 36 - 4 - 6
    assert all(space.why_not(values) is None for values in space.configurations)


def on_gpus(gigabytes, base, *dimensions):
    return SearchSpace(dimensions, base, 8, Limits(gpu_bytes=round(gigabytes * 1e9)))


big = (
    "target.model=random:qwen3-8b",
    "drafter.layers=5",
    "data.max_length=3072",
    "window.tokens=65536",
    "pipeline.token_budget=4096",
    "transport.preset=peer",
)


def least_gb(space):
    """What each combination needs at least of one GPU."""
    ledgers = [space.arithmetic.ledger(space.config(v), likely=False) for v in space.configurations]
    return sorted(max(each.needed_bytes(p) for p in each.places if p != "host") / 1e9 for each in ledgers)


def test_what_cannot_fit_is_ruled_out_and_counted(base_of):
    budgets = Dimension("pipeline.token_budget", (4096, 8192, 65536))
    depths = Dimension("transport.depth", (2, 64))
    checkpointing = Dimension("drafter.checkpointing", ("none", "layers"))
    base = base_of(*big, "drafter.checkpointing=layers")
    roomy = on_gpus(500, base, budgets, depths, checkpointing)
    assert (roomy.size, roomy.ruled_out) == (12, ())
    needs = least_gb(roomy)
    space = on_gpus(needs[5] + 1e-6, base, budgets, depths, checkpointing)
    assert space.size == 6
    (out,) = space.ruled_out
    assert (out.kind, out.count) == (too_large, 6)
    assert out.example not in space.configurations
    assert "GB needed on cuda:" in out.reason
    assert space.why_not(out.example) == out.reason
    for values in space.configurations:  # asking of others first changes no answer
        assert space.arithmetic.why_not(space.config(values)) is None


def test_a_start_that_cannot_fit_is_told_what_may(base_of):
    base, budgets = base_of(*big, "pipeline.token_budget=65536"), Dimension("token_budget", (4096, 65536))
    needs = least_gb(on_gpus(500, base, budgets))
    with pytest.raises(DeviceError, match=r"--set pipeline\.token_budget=4096"):
        on_gpus((needs[0] + needs[1]) / 2, base, budgets)


def test_where_nothing_can_run_the_reasons_are_told_and_it_is_nobodys_usage(base_of):
    budgets, splits = Dimension("pipeline.token_budget", (4096, 65536)), Dimension("split", ("1-1", "9-1"))
    with pytest.raises(DFlashError, match="no combination of the space can run") as caught:
        on_gpus(10, base_of(*big), budgets, splits)
    assert caught.value.exit_code == 1
    assert "2 combinations: does not fit into memory (for example at least " in caught.value.found
    assert "2 combinations: more devices than there are" in caught.value.found
    assert "needs at least 2" in caught.value.remedy


def test_an_empty_space_is_refused(base_of):
    with pytest.raises(ConfigError, match="nothing is left to search"):
        SearchSpace((), base_of(), 2)


def test_losses_are_comparable_where_the_same_is_trained(base_of):
    layers = Dimension("drafter.layers", (2, 5), changes_training=True)
    space = SearchSpace((layers, Dimension("transport.depth", (1, 2))), base_of(), 2)
    assert space.changes_training == ("drafter.layers",)
    start = space.baseline
    assert trains_the_same(space, start, {**start, "transport.depth": 1})
    assert not trains_the_same(space, start, {**start, "drafter.layers": 5})
