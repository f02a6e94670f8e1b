"""A space in its user's words, and every mistake in it as one message that names file and key."""

from __future__ import annotations

import pytest

from autotune.space_file import Wishes, read_space_file, shape_space
from dflash.contract.errors import ConfigError


@pytest.fixture
def write(tmp_path):
    def run(text):
        path = tmp_path / "my-space.toml"
        path.write_text(text)
        return path

    return run


def test_named_choices_take_the_place_of_the_machines(write, base_of, machine):
    lines = ["[space]", "token_budget = [1024, 2048]", 'schedule = ["overlapped", "lockstep"]']
    described = shape_space(base_of(), machine, Wishes(read_space_file(write("\n".join(lines))))).describe()
    assert described["pipeline.token_budget"] == [1024, 2048]
    assert described["pipeline.schedule"] == ["overlapped", "lockstep"]
    assert "pipeline.split" in described, "what is not named stays"


def test_only_searches_nothing_else(write, base_of, machine):
    file = read_space_file(write("only = true\n[space]\ntoken_budget = [1024, 2048]\n"))
    assert shape_space(base_of(), machine, Wishes(file)).paths == ("pipeline.token_budget",)


def test_tables_and_short_names_mean_the_same(write):
    nested = read_space_file(write('[space]\nsplit = ["1-1"]\n[space.transport]\ndepth = [1, 2]\n'))
    assert nested.choices == {"pipeline.split": ("1-1",), "transport.depth": (1, 2)}


def test_settings_may_stand_below_the_table_too(write):
    file = read_space_file(
        write('[space]\nlayers = [2, 3]\nchanges_training = ["drafter.layers"]\nonly = true\n')
    )
    assert (file.changes_training, file.only) == (("drafter.layers",), True)


def test_what_changes_training_is_searched_when_named(write, base_of, machine):
    file = read_space_file(
        write('changes_training = ["drafter.layers"]\n[space]\n"drafter.layers" = [2, 3]\n')
    )
    space = shape_space(base_of("drafter.layers=2"), machine, Wishes(file))
    assert space.changes_training == ("drafter.layers",)
    assert {values["drafter.layers"] for values in space.configurations} == {2, 3}


def test_transports_in_parts(write, base_of, machine):
    lines = [
        "[space]",
        'queue = ["preset", "shared", "per_drafter"]',
        '"transport.path" = ["preset", "peer"]',
    ]
    space = shape_space(base_of(), machine, Wishes(read_space_file(write("\n".join(lines)))))
    others = [
        path for path in space.paths if path not in ("transport.queue", "transport.path", "transport.preset")
    ]
    ways = [
        (*(values[path] for path in others), str(space.config(values).transport_choice))
        for values in space.configurations
        if values["pipeline.split"] == "1-2"
    ]
    assert len(ways) == len(set(ways)), "nothing twice"
    assert {"shared/peer/least_depth/depth 2", "per_drafter/pageable/round_robin/depth 2"} <= {
        w[-1] for w in ways
    }


def test_held_knobs_are_set_and_not_searched(base_of, machine):
    space = shape_space(base_of(), machine, Wishes(fixed={"pipeline.split": "2-1", "transport.depth": 4}))
    assert (space.base.pipeline.split, space.base.transport.depth) == ("2-1", 4)
    assert not {"pipeline.split", "transport.depth"} & set(space.paths)


@pytest.mark.parametrize(
    ("text", "key", "says"),
    [
        ("[space", "", "not valid TOML"),
        ("x = 1\n[space]\nsplit = ['1-1']", "x", "means nothing"),
        ("onyl = true\n[space]\nsplit = ['1-1']", "onyl", "did you mean 'only'"),
        ("only = true", "space", "needs a table"),
        ("space = 3", "space", "found: 3"),
        ("[space]", "space", "names no choices"),
        ("[space]\ntoken_bugdet = [1]", "token_bugdet", "did you mean 'pipeline.token_budget'"),
        ("[space]\ntoken_budget = 1024", "token_budget", "choices are a list"),
        ("[space]\ntoken_budget = []", "token_budget", "needs choices, each once"),
        ("[space]\ntoken_budget = [1024, 1024]", "token_budget", "each once"),
        ("[space]\ntoken_budget = [1024, 3]", "token_budget", "found: 3"),
        ("[space]\ntoken_budget = ['big']", "token_budget", "found: 'big'"),
        ("[space]\npreset = ['pear']", "preset", "did you mean 'peer'"),
        ("[space]\nseed = [1]", "seed", "could mean several"),
        ("[space]\nsplit = ['1-1']\n'pipeline.split' = ['1-1']", "pipeline.split", "named twice"),
        ("[space]\n'drafter.layers' = [1, 2]", "drafter.layers", 'changes_training = ["drafter.layers"]'),
        (
            "[space]\n'run.epochs' = [1, 2]\nchanges_training = ['run.epochs']",
            "run.epochs",
            "cannot be searched",
        ),
        (
            "[space]\n'devices.link_gigabytes_per_s' = [1, 2]",
            "devices.link_gigabytes_per_s",
            "cannot be searched",
        ),
        ("changes_training = 'lr'\n[space]\nsplit = ['1-1']", "changes_training", "is a list"),
        ("changes_training = ['lr']\n[space]\nsplit = ['1-1']", "changes_training", "without choices"),
        ("changes_training = ['split']\n[space]\nsplit = ['1-1']", "changes_training", "does not change"),
        (
            "changes_training = ['nope']\n[space]\nsplit = ['1-1']",
            "changes_training",
            "no knob called 'nope'",
        ),
        ("only = 1\n[space]\nsplit = ['1-1']", "only", "true or false"),
    ],
)
def test_a_mistake_names_file_and_key(write, text, key, says):
    path = write(text)
    with pytest.raises(ConfigError) as caught:
        read_space_file(path)
    message = str(caught.value)
    assert f"where: {path}" + (f": {key}" if key else "") in message
    assert says in message


def test_a_file_that_is_not_there_says_so(tmp_path):
    with pytest.raises(ConfigError, match="no such space file"):
        read_space_file(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_space_file(tmp_path)


def test_a_start_outside_names_the_key(write, base_of, machine):
    path = write("[space]\ntoken_budget = [512, 2048]")
    with pytest.raises(ConfigError, match="lies outside the space") as caught:
        shape_space(base_of(), machine, Wishes(read_space_file(path)))
    assert caught.value.where == f"{path}: pipeline.token_budget"
    assert caught.value.found == "1024"


def test_searched_and_held_at_once_is_refused(write, base_of, machine):
    file = read_space_file(write("[space]\ntoken_budget = [1024, 2048]"))
    with pytest.raises(ConfigError, match="searched and held at once"):
        shape_space(base_of(), machine, Wishes(file, {"pipeline.token_budget": 1024}))


def test_everything_held_is_no_search(write, base_of, machine):
    file = read_space_file(write("only = true\n[space]\ntoken_budget = [1024]"))
    with pytest.raises(ConfigError, match="nothing is left to search"):
        shape_space(base_of(), machine, Wishes(file))
