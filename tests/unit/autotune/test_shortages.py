"""Asking few gives the answers of asking all."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from autotune.shortages import Shortages

choices = {
    "transport.depth": (1, 2, 4),
    "pipeline.prefetch_depth": (2, 8),
    "drafter.checkpointing": ("none", "layers"),
    "pipeline.token_budget": (1, 2, 3, 4),
}
every = [dict(zip(choices, point, strict=True)) for point in itertools.product(*choices.values())]


@given(st.integers(0, 60), st.integers(0, 5), st.integers(0, 5), st.integers(0, 9))
def test_answers_are_those_of_the_rule_itself(limit, depth, prefetch, kept):
    asked = []

    def ask(values):
        asked.append(values)
        need = 5 * values["pipeline.token_budget"] + depth * values["transport.depth"]
        need += prefetch * values["pipeline.prefetch_depth"] + kept * (
            values["drafter.checkpointing"] == "none"
        )
        return "too much" if need > limit else None

    shortages = Shortages(choices, ask)
    found = [shortages.find(values) for values in every]
    assert len(asked) <= len(every), "nobody is asked twice"
    assert found == [ask(values) for values in every]


def test_most_are_never_asked():
    asked = []
    shortages = Shortages(choices, asked.append)
    assert [shortages.find(values) for values in every] == [None] * len(every)
    assert len(asked) == 4
