"""What keeps a fast trial from winning."""

import pytest

from autotune.health import find_illness

falling = tuple(8.0 - 0.1 * step for step in range(20))


@pytest.mark.parametrize(
    ("changes", "reference", "says"),
    [
        ({}, (), None),
        ({}, falling, None),
        ({"losses": tuple(x * 1.03 for x in falling)}, falling, None),  # summation order and precision
        ({"losses": (8.0,) * 20}, falling, "not that of the starting configuration"),
        ({"losses": (3.0,) * 20}, falling, "not that of the starting configuration"),
        ({"losses": (8.0,) * 20}, (), None),  # flat is no proof in a short run
        ({"losses": tuple(reversed(tuple(x - 4 for x in falling)))}, (), "the loss rises"),
        ({"losses": falling}, (*falling[:6], None), None),
        ({"losses": ()}, falling, "no loss"),
        ({"losses": ()}, (), None),  # a runner that tells of none
        ({"supervised_tokens": None}, falling, None),
        ({"supervised_tokens": 0}, falling, "no token was supervised"),
        ({"losses": (8.0, 7.9)}, falling, None),  # too few windows to tell
    ],
)
def test_illness_is_named(measurement_of, changes, reference, says):
    found = find_illness(measurement_of(1000.0, **changes), reference)
    assert found is None if says is None else says in found
