"""What to do next when nothing can be recommended."""

from autotune.lessons.advice import advise
from autotune.telemetry import FailureKind, MemoryFigures


def test_out_of_memory_names_the_smallest_need_and_what_makes_it_smaller(space, trial_of):
    sizes = [
        {"cuda:0": MemoryFigures(peak_bytes=90e9, limit_bytes=80e9), "host": MemoryFigures(peak_bytes=1e12)},
        {"cuda:1": MemoryFigures(peak_bytes=81e9, limit_bytes=80e9)},
        {},
    ]
    trials = [trial_of(n, space.configurations[n], memory=memory) for n, memory in enumerate(sizes)]
    (told,) = advise(trials)
    assert "trial 1, took 81.0 GB before it failed on cuda:1, which has 80.0 GB" in told
    assert "Try a smaller pipeline.token_budget" in told


def test_a_planned_need_says_more_than_what_was_reached(space, trial_of):
    figures = MemoryFigures(peak_bytes=79e9, limit_bytes=80e9, planned_bytes=97e9)
    (told,) = advise([trial_of(0, space.baseline, memory={"cuda:0": figures})])
    assert "needs 97.0 GB by plan on cuda:0" in told


def test_memory_that_nobody_saw_is_not_invented(space, trial_of):
    (told,) = advise([trial_of(0, space.baseline)])
    assert told.startswith("Every configuration needs more memory than there is.")


def test_the_two_commonest_troubles_are_told_in_their_order(space, trial_of):
    def failed(number, kind, reason):
        return trial_of(number, space.configurations[number], failure=kind, reason=reason)

    trials = [
        failed(0, FailureKind.crash, "ended by SIGSEGV\nsecond line"),
        failed(1, FailureKind.too_short, "4 windows"),
        failed(2, FailureKind.too_short, "4 windows"),
        failed(3, FailureKind.refused, "the split is impossible"),
    ]
    short, crash = advise(trials)
    assert "Trials of 12 s show too few windows" in short
    assert "Trial 0 ended with: ended by SIGSEGV." in crash
    assert "trials/000/run/trainer.log" in crash
    assert "dflash-train run trials/000/config.toml" in crash


def test_unhealthy_trials_are_told_beside_failed_ones(space, trial_of):
    trials = [
        trial_of(0, space.baseline, 100.0, unhealthy="the loss rises from 2 to 5"),
        trial_of(1, space.configurations[1], failure=FailureKind.lost_gpu, reason="Xid 79"),
    ]
    lost, unhealthy = advise(trials)
    assert "A GPU was lost (Xid 79)" in lost
    assert "did not train soundly (the loss rises from 2 to 5)" in unhealthy


def test_no_trial_yet_is_no_failure():
    assert advise([]) == ("No trial has ended yet: the same line goes on.",)
