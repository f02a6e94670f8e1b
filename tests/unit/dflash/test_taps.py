import pytest

from dflash.contract.errors import ConfigError
from dflash.contract.sections import DrafterConfig
from dflash.contract.taps import choose_taps, resolve_taps

published = {
    36: (1, 9, 17, 25, 33),
    64: (1, 16, 31, 46, 61),
    40: (1, 10, 19, 28, 37),
    32: (1, 8, 15, 22, 29),
    28: (1, 7, 13, 19, 25),
    24: (1, 6, 11, 16, 21),
    48: (1, 12, 23, 34, 45),
}


@pytest.mark.parametrize("layers", published)
def test_formula_gives_the_published_taps(layers):
    assert choose_taps(layers, 5) == published[layers]


def test_one_tap_sits_in_the_middle():
    assert choose_taps(36, 1) == (18,)
    assert choose_taps(1, 1) == (0,)


@pytest.mark.parametrize("layers", range(1, 40))
@pytest.mark.parametrize("count", [1, 2, 3, 5, 8])
def test_taps_are_ascending_layers_or_refused(layers, count):
    if count > max(1, layers - 3):
        with pytest.raises(ConfigError, match="tap_count"):
            choose_taps(layers, count)
        return
    taps = choose_taps(layers, count)
    assert len(taps) == count
    assert list(taps) == sorted(set(taps))
    assert 0 <= taps[0] <= taps[-1] < layers


def test_listed_taps_win_over_the_formula():
    assert resolve_taps(DrafterConfig(taps=(5, 19, 33), tap_count=5), 64) == (5, 19, 33)


def test_tap_past_the_last_layer_is_refused_with_the_range():
    with pytest.raises(ConfigError, match="0 to 7"):
        resolve_taps(DrafterConfig(taps=(1, 8)), 8)
