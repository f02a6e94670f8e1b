"""Which configuration is proposed next."""

from autotune.proposals import exceeds_memory, propose
from autotune.telemetry import Cause, FailureKind


def at(space, **changes):
    names = {"split": "pipeline.split", "budget": "pipeline.token_budget", "preset": "transport.preset"}
    return space.baseline | {names[name]: value for name, value in changes.items()}


def test_the_starting_configuration_comes_first(space):
    assert propose(space, ()).values == space.baseline


def test_the_remedy_of_the_first_cause_comes_next(space, trial_of, measurement_of):
    causes = (
        Cause(name="no-knob", summary="", remedy={}),
        Cause(name="not-searched", summary="", remedy={"data.max_length": 128}),
        Cause(name="sync-d2h", summary="", remedy={"transport.preset": "peer"}),
    )
    start = trial_of(0, space.baseline, 100.0, measurement=measurement_of(100.0, causes=causes))
    proposal = propose(space, (start,))
    assert proposal.values == at(space, preset="peer")
    assert "remedy for sync-d2h in trial 0" in proposal.why


def test_neighbours_move_every_knob_once_before_any_twice(space_of, trial_of):
    space = space_of(transport__preset=("host", "pinned", "peer"))
    trials = [trial_of(0, space.baseline, 100.0)]
    moved = []
    for number in range(1, 4):
        values = propose(space, trials).values
        moved += [path for path in space.paths if values[path] != space.baseline[path]]
        trials.append(trial_of(number, values, 50.0))
    assert moved == list(space.paths)


def test_the_search_moves_on_from_the_fastest_healthy_trial(space, trial_of):
    ill = trial_of(1, at(space, budget=4096), 900.0, unhealthy="the loss is off")
    fast = trial_of(2, at(space, split="2-1"), 200.0)
    values = propose(space, (trial_of(0, space.baseline, 100.0), ill, fast)).values
    assert sum(values[path] != fast.values[path] for path in space.paths) == 1
    assert values["pipeline.split"] != "1-1" or values["pipeline.token_budget"] == 1024


def test_every_configuration_is_proposed_once_and_then_none(space_of, trial_of):
    space = space_of(pipeline__split=("1-1", "2-1"), transport__preset=("host", "pinned", "peer"))
    trials = []
    while (proposal := propose(space, trials)) is not None:
        assert space.why_not(proposal.values) is None
        trials.append(trial_of(len(trials), proposal.values, 100.0 + len(trials) % 5))
    assert len(trials) == space.size == 18
    assert len({space.point(trial.values) for trial in trials}) == 18


def test_the_same_trials_give_the_same_proposal(space, trial_of):
    trials = [trial_of(i, values, 100.0 - i) for i, values in enumerate(space.configurations[:20])]
    assert propose(space, trials) == propose(space, trials)


def test_out_of_memory_rules_out_what_asks_for_more(space, trial_of):
    failed = [trial_of(0, at(space, split="2-1", budget=2048, preset="peer") | {"transport.depth": 2})]
    base = at(space, split="2-1", preset="peer") | {"transport.depth": 2}
    bigger = base | {"pipeline.token_budget": 4096, "transport.preset": "host", "transport.depth": 1}
    assert exceeds_memory(bigger, failed)
    assert exceeds_memory(base | {"pipeline.token_budget": 2048, "transport.depth": 4}, failed)
    assert not exceeds_memory(base | {"pipeline.token_budget": 2048, "transport.depth": 1}, failed)
    assert not exceeds_memory(base | {"pipeline.token_budget": 2048, "transport.preset": "host"}, failed)
    assert not exceeds_memory(base | {"pipeline.token_budget": 1024}, failed)
    assert not exceeds_memory(base | {"pipeline.token_budget": 4096, "pipeline.split": "1-1"}, failed)


def test_other_failures_rule_out_nothing_but_themselves(space, trial_of):
    failed = [trial_of(0, space.baseline, failure=FailureKind.timeout)]
    assert not exceeds_memory(at(space, budget=4096), failed)
    assert propose(space, failed).values != space.baseline


def test_a_failed_start_still_gets_the_rest_searched(space, trial_of):
    trials = [trial_of(0, space.baseline, failure=FailureKind.crash)]
    for number in range(1, 6):
        proposal = propose(space, trials)
        trials.append(trial_of(number, proposal.values, failure=FailureKind.crash))
    assert len({space.point(trial.values) for trial in trials}) == 6
