"""What may be evaluated, where its configuration comes from, and what is refused by name."""

import dataclasses
import json
from pathlib import Path

import pytest

from dflash.checkpoints.files import facts_of_files, write_whole
from dflash.checkpoints.manifest import Manifest, Position, write_manifest
from dflash.contract.config import load_config
from dflash.contract.errors import CheckpointError, ConfigError, UsageError
from dflash.data.tokenizer import open_embedded_tokenizer
from dflash.drafter_config import read_spec
from dflash.drafter_files import open_drafter, write_drafter
from dflash.evaluation.subject import check_fits, open_subject
from dflash.export import export_drafter
from dflash.target_shapes import TargetSpec, random_config

golden = Path(__file__).parents[3] / "data" / "golden"


@pytest.fixture
def run(tmp_path):
    """Whose settings are not the defaults."""
    tokenizer = open_embedded_tokenizer()
    manifest = Manifest(
        position=Position(step=7, data_begins_at=0, epoch=0, window=7),
        optimizer_updates=7,
        schedule={},
        random={},
        model={"tokenizer": tokenizer.content_sha256, "chat_template": "another"},
        data={"documents": "12 documents"},
        settings=load_config(
            None, ["target.model=random:tiny", "target.seed=5", "data.max_length=64"]
        ).values(),
        devices=[],
        files={},
    )

    def fill(into: Path) -> None:
        write_drafter(into, open_drafter(golden / "tiny_drafter"))
        write_manifest(into, dataclasses.replace(manifest, files=facts_of_files(into)))

    write_whole(tmp_path / "run" / "checkpoints", 7, fill)
    return tmp_path / "run"


def test_a_run_brings_its_configuration_and_settings_change_it(run):
    subject = open_subject(str(run), ["data.max_length=128"])
    assert (subject.config.target.model, subject.config.target.seed) == ("random:tiny", 5)
    assert subject.config.data.max_length == 128
    assert (subject.step, subject.trained_on) == (7, "12 documents")
    assert subject.path == run / "checkpoints" / "step-7"
    assert open_subject(str(subject.path), []).config.data.max_length == 64


def test_an_export_knows_its_target_and_how_texts_were_made_but_not_where_they_lie(run, tmp_path):
    export_drafter(str(run), tmp_path / "out")
    subject = open_subject(str(tmp_path / "out"), [])
    assert (subject.config.target.model, subject.config.target.seed) == ("random:tiny", 5)
    assert (subject.step, subject.trained_on) == (7, "12 documents")
    assert (subject.config.data.max_length, subject.config.data.path) == (64, "")
    assert open_subject(str(tmp_path / "out"), ["target.model=x/y"]).config.target.model == "x/y"


def test_of_a_published_drafter_the_target_must_be_named():
    published = str(golden / "tiny_drafter")
    with pytest.raises(UsageError, match="which target") as caught:
        open_subject(published, [])
    assert "--set target.model" in caught.value.remedy
    assert open_subject(published, ["target.model=random:tiny"]).step is None


def test_another_tokenizer_or_template_is_told(run, tmp_path):
    export_drafter(str(run), tmp_path / "out")
    for source in (run, tmp_path / "out"):
        doubts = open_subject(str(source), []).doubt_tokenizer(open_embedded_tokenizer())
        assert doubts == ["the chat template is not the one that the drafter was trained with"]
    published = open_subject(str(golden / "tiny_drafter"), ["target.model=random:tiny"])
    assert published.doubt_tokenizer(open_embedded_tokenizer()) == []


@pytest.mark.parametrize("text", ["{", "[]", '{"target": "x"}', '{"settings": 3}'])
def test_a_broken_origin_is_refused(text, run, tmp_path):
    export_drafter(str(run), tmp_path / "out")
    (tmp_path / "out" / "export.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"export\.json"):
        open_subject(str(tmp_path / "out"), [])


def test_what_is_neither_and_unknown_knobs_are_refused(run, tmp_path):
    with pytest.raises(CheckpointError, match="no checkpoint to evaluate"):
        open_subject(str(tmp_path), [])
    with pytest.raises(ConfigError, match="max_lenght"):
        open_subject(str(run), ["data.max_lenght=3"])


def test_a_drafter_of_another_target_is_refused_by_what_differs():
    spec = read_spec(golden / "tiny_drafter" / "config.json")
    tiny = TargetSpec.of(random_config("tiny"), "random:tiny")
    fitting = dataclasses.replace(tiny, hidden=64, layers=8, vocab=97)
    check_fits(spec, fitting)
    for changes, named in (
        ({"hidden": 32}, "hidden"),
        ({"layers": 9}, "layers"),
        ({"vocab": 98}, "vocabulary"),
    ):
        with pytest.raises(CheckpointError, match=named):
            check_fits(spec, dataclasses.replace(fitting, **changes))


def test_a_drafter_that_reaches_beyond_its_target_is_refused():
    spec = read_spec(golden / "tiny_drafter" / "config.json")
    tiny = TargetSpec.of(random_config("tiny"), "random:tiny")
    fitting = dataclasses.replace(tiny, hidden=64, layers=8, vocab=97)
    for changes, name, found, expected in (
        ({"taps": (1, 8)}, "target_layer_ids", "8", "0 to 7"),
        ({"taps": (-1, 3)}, "target_layer_ids", "-1", "0 to 7"),
        ({"mask_token_id": 97}, "mask_token_id", "97", "0 to 96"),
        ({"mask_token_id": -1}, "mask_token_id", "-1", "0 to 96"),
    ):
        with pytest.raises(CheckpointError) as caught:
            check_fits(dataclasses.replace(spec, **changes), fitting)
        assert caught.value.where == f"config.json: dflash_config.{name}"
        assert (caught.value.found, caught.value.expected) == (found, expected)


def test_an_export_is_of_its_checkpoint_not_of_what_json_says(run, tmp_path):
    """The number of slots is read from config.json, where engines read it."""
    export_drafter(str(run), tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    (tmp_path / "out" / "config.json").write_text(json.dumps({**config, "block_size": 9}))
    assert open_subject(str(tmp_path / "out"), []).drafter.spec.block_size == 9
