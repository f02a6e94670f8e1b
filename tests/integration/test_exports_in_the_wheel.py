"""What was exported runs in z-lab's wheel dflash 0.1.0 as it does here; evaluation tells what it decodes.

The wheel's package has our import name: it lies in .venv/peers (`make test` puts it there) and runs in a
process of its own, one for all tests here.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from dflash.attention import SdpaView, full, sliding
from dflash.checkpoints.files import facts_of_files, write_whole
from dflash.checkpoints.manifest import Manifest, Position, write_manifest
from dflash.contract.config import load_config
from dflash.contract.errors import CheckpointError
from dflash.drafter import Drafter, DrafterSpec, init_drafter
from dflash.drafter_config import read_spec
from dflash.drafter_files import open_drafter, write_drafter
from dflash.evaluation.evaluate import evaluate, pick_documents
from dflash.evaluation.outcome import Request, describe
from dflash.export import export_drafter

root = Path(__file__).parents[2]
golden = root / "tests" / "data" / "golden"
peers = Path(sys.prefix) / "peers"
cpu = torch.device("cpu")
new_tokens, stop = 24, 23  # the target says 23 now and then

pytestmark = pytest.mark.skipif(
    not (peers / "dflash").is_dir(), reason=f"no dflash 0.1.0 in {peers}: `make test` installs it there"
)
ending = "<|im_end|>"
template = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_tokenizer(directory: Path) -> Path:
    """One token a character, for a target with 97 rows of which the last is the mask."""
    signs = "abcdefghijklmnopqrstuvwxyz0123456789 .,?!\n"
    vocabulary = ["<|im_start|>", *signs]
    vocabulary.insert(stop, ending)
    tokenizer = Tokenizer(models.WordLevel({text: i for i, text in enumerate(vocabulary)}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in ("<|im_start|>", ending)])
    directory.mkdir()
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": ending, "chat_template": template}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


def make_talks(path: Path) -> Path:
    """Twelve questions; what they were answered is not what this target would say."""
    words = ("when", "who", "why", "the", "sun", "a", "cat", "sea", "two", "old", "men", "no", "rain", "over")
    rows = [
        {
            "messages": [
                {"role": "user", "content": " ".join(words[i % 5 : i % 5 + 1 + i % 7]) + "?"},
                {"role": "assistant", "content": f"because of {words[-1 - i]}, {i}."},
            ]
        }
        for i in range(12)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def save_run(run: Path, drafter: Drafter, *settings: str) -> Path:
    """A run directory with one checkpoint of that drafter."""
    manifest = Manifest(
        position=Position(step=400, data_begins_at=0, epoch=0, window=400),
        optimizer_updates=400,
        schedule={},
        random={},
        model={},
        data={},
        settings=load_config(None, list(settings)).values(),
        devices=[],
        files={},
    )

    def fill(into: Path) -> None:
        write_drafter(into, drafter)
        write_manifest(into, dataclasses.replace(manifest, files=facts_of_files(into)))

    write_whole(run / "checkpoints", 400, fill)
    return run


trained = read_spec(golden / "tiny_drafter" / "config.json")
shapes = {
    "full": dataclasses.replace(trained, layer_types=(full,) * 3),
    "mixed": trained,
    "sliding": dataclasses.replace(trained, layer_types=(sliding,) * 3, sliding_window=5, block_size=7),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("wheel")


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Any:
    """Many small products: more threads would wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def run(place: Path) -> Path:
    """A run whose drafter was trained on this target."""
    settings = (
        f"target.model={golden / 'tiny_target'}",
        f"target.tokenizer={make_tokenizer(place / 'tokenizer')}",
        f"data.path={make_talks(place / 'talks.jsonl')}",
    )
    drafter = open_drafter(golden / "tiny_drafter")
    return save_run(place / "run", drafter, *settings)


@pytest.fixture(scope="module")
def evaluated(run: Path) -> dict[str, Any]:
    said: list[str] = []
    document = evaluate(str(run), [], Request(prompts=12, max_new_tokens=new_tokens, batch=4), said.append)
    assert any("answered 12 of 12" in line for line in said)
    return document


@pytest.fixture(scope="module")
def exports(place: Path, run: Path) -> dict[str, Path]:
    """Directories by name."""
    made = {"trained": place / "trained"}
    export_drafter(str(run), made["trained"], "float32")
    for name, spec in shapes.items():
        own = save_run(place / f"run-{name}", init_drafter(spec, 7))
        for dtype in ("float32", "bfloat16"):
            made[f"{name} {dtype}"] = place / f"{name}-{dtype}"
            export_drafter(str(own), made[f"{name} {dtype}"], dtype)
    return made


def inputs_of(spec: DrafterSpec) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    features = torch.randn(19, len(spec.taps) * spec.hidden, generator=generator)
    return {"features": features, "noise": torch.randn(spec.block_size, spec.hidden, generator=generator)}


@pytest.fixture(scope="module")
def told(place: Path, exports: dict[str, Path], evaluated: dict[str, Any]) -> dict[str, Any]:
    """What the wheel says to everything asked here."""
    for name, spec in shapes.items():
        save_file(inputs_of(spec), place / f"{name}.inputs")
    blocks = [name for name in exports if name != "trained"]
    job = {
        "hidden": [
            {
                "drafter": str(exports[name]),
                "inputs": str(place / f"{name.split()[0]}.inputs"),
                "out": str(place / f"{name}.states"),
            }
            for name in blocks
        ],
        "generate": [
            {
                "drafter": str(exports["trained"]),
                "target": str(golden / "tiny_target"),
                "prompts": [text["prompt"] for text in evaluated["texts"]],
                "max_new_tokens": new_tokens,
                "stops": [stop],
            }
        ],
    }
    done = subprocess.run(
        [sys.executable, "-P", str(root / "tests/data/programs/peer_drafter.py")],
        input=json.dumps(job),
        capture_output=True,
        text=True,
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(peers)},
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answer = json.loads(done.stdout)
    assert Path(answer["package"]).is_relative_to(peers)
    return {**answer, "hidden": dict(zip(blocks, answer["hidden"], strict=True))}


def states_here(directory: Path, dtype: torch.dtype) -> torch.Tensor:
    drafter = open_drafter(directory).to(dtype)
    inputs = inputs_of(drafter.spec)
    count, b = len(inputs["features"]), drafter.spec.block_size
    view = SdpaView.over(torch.tensor([count]), [1], (count,), b, drafter.spec, cpu)
    places = torch.arange(count), torch.arange(count, count + b)
    with torch.no_grad():
        states: torch.Tensor = drafter(
            inputs["features"].to(dtype), places[0], inputs["noise"].to(dtype), places[1], view
        )
    return states


@pytest.mark.parametrize("name", shapes)
def test_a_float32_export_gives_the_same_states(
    name: str, told: dict[str, Any], exports: dict[str, Path], place: Path
) -> None:
    theirs = load_file(place / f"{name} float32.states")["states"]
    torch.testing.assert_close(
        states_here(exports[f"{name} float32"], torch.float32), theirs, rtol=1e-5, atol=1e-5
    )
    assert told["hidden"][f"{name} float32"]["dtype"] == "torch.float32"


@pytest.mark.parametrize("name", shapes)
def test_a_bfloat16_export_gives_the_same_states_within_its_noise(
    name: str, told: dict[str, Any], exports: dict[str, Path], place: Path
) -> None:
    """No further from exact arithmetic with those weights than our own bfloat16, twice over."""
    theirs = load_file(place / f"{name} bfloat16.states")["states"]
    assert theirs.dtype == torch.bfloat16
    exact = states_here(exports[f"{name} bfloat16"], torch.float32)
    ours = states_here(exports[f"{name} bfloat16"], torch.bfloat16)
    noise, off = ((x.float() - exact).norm() / exact.norm() for x in (ours, theirs))
    assert 0 < noise < 0.02
    assert off < 2 * noise


def test_shapes_differ_where_layers_do(told: dict[str, Any], exports: dict[str, Path]) -> None:
    """So that the tests above can fail: the same weights under other visibility are far off."""
    same = states_here(exports["full float32"], torch.float32)
    assert (same - states_here(exports["mixed float32"], torch.float32)).abs().max() > 0.01


@pytest.mark.parametrize("name", shapes)
def test_the_wheel_reads_what_the_export_says(
    name: str, told: dict[str, Any], exports: dict[str, Path]
) -> None:
    """C105: the documented number of slots, the mask and the taps."""
    blocks = json.loads((exports[f"{name} bfloat16"] / "export.json").read_text())["blocks"]
    read, spec = told["hidden"][f"{name} bfloat16"], shapes[name]
    assert read["block_size"] == blocks["block_size"] == spec.block_size
    assert (read["mask_token_id"], read["taps"]) == (spec.mask_token_id, list(spec.taps))
    assert read["tensors"] == 11 * spec.layers + 3


def test_the_wheel_drafts_the_documented_count(told: dict[str, Any], exports: dict[str, Path]) -> None:
    """C105."""
    blocks = json.loads((exports["trained"] / "export.json").read_text())["blocks"]
    assert told["generate"][0]["most_drafted"] == blocks["drafted_tokens"] == blocks["block_size"] - 1
    assert blocks["sglang_speculative_num_draft_tokens"] == blocks["block_size"]
    assert blocks["vllm_num_speculative_tokens"] == blocks["drafted_tokens"]


def test_evaluation_has_the_lengths_and_the_text_of_decoding(
    told: dict[str, Any], evaluated: dict[str, Any]
) -> None:
    decoded = told["generate"][0]
    assert [text["answer"] for text in evaluated["texts"]] == decoded["answers"]
    assert [text["lengths"] for text in evaluated["texts"]] == [[row] for row in decoded["lengths"]]
    ends = {len(text["answer"]) for text in evaluated["texts"]}
    assert new_tokens in ends  # some were cut off there, where blocks shrink
    assert len(ends) > 2  # others ended of themselves, where they do not
    rows = [row for row in decoded["lengths"] if row]
    acceptance = evaluated["acceptance"]
    assert acceptance["pooled"] == pytest.approx(sum(map(sum, rows)) / sum(map(len, rows)))
    assert acceptance["mean_of_means"] == pytest.approx(sum(sum(r) / len(r) for r in rows) / len(rows))
    assert max(map(max, rows)) > 1  # something was accepted
    # Of an answer's last block a draft may be right and still not be kept.
    more_than_one = sum(k > 1 for row in rows for k in row)
    assert more_than_one <= acceptance["slots"][0]["accepted"] <= more_than_one + len(rows)
    assert acceptance["slots"][0]["blocks"] <= acceptance["blocks"]


def test_what_was_exported_evaluates_as_the_run_does(
    exports: dict[str, Path], evaluated: dict[str, Any], place: Path
) -> None:
    request = Request(prompts=12, max_new_tokens=new_tokens, batch=1)
    settings = [f"data.path={place / 'talks.jsonl'}"]
    again = evaluate(str(exports["trained"]), settings, request, lambda _: None)
    assert again["texts"] == evaluated["texts"]
    assert again["acceptance"] == evaluated["acceptance"]
    assert (again["drafter"]["step"], again["target"]) == (400, evaluated["target"])
    assert "acceptance" in describe(again)


def test_of_the_data_of_the_run_the_texts_held_out_are_taken(run: Path) -> None:
    from dflash.data.loading import load_documents
    from dflash.data.slices import hold_out
    from dflash.data.tokenizer import open_tokenizer
    from dflash.evaluation.subject import open_subject

    config = open_subject(str(run), ["data.held_out=0.4"]).config
    documents = load_documents(config, open_tokenizer(config.target, config.data))
    trained, held = hold_out(documents, config)
    assert held is not None
    picked = {known: pick_documents(documents, config, known) for known in (trained.identity, "others", None)}
    assert {known: (part, found.identity) for known, (part, found) in picked.items()} == {
        trained.identity: ("held out", held.identity),
        "others": ("all", documents.identity),
        None: ("all", documents.identity),
    }


def test_a_drafter_of_a_deeper_target_is_refused_before_weights_are_read(run: Path) -> None:
    settings = ["target.model=random:tiny", "target.tokenizer=auto"]
    with pytest.raises(CheckpointError, match="does not belong to this target"):
        evaluate(str(run), settings, Request(), lambda _: None)


def test_answers_of_the_data_are_measured_as_they_stand(run: Path, evaluated: dict[str, Any]) -> None:
    """Teacher-forced: few of these tokens are the target's own, and it says how many."""
    document = evaluate(str(run), [], Request(answers="data", prompts=5), lambda _: None)
    assert document["prompts"] == 5
    assert document["acceptance"]["tokens"] == document["answer_tokens"] - 5
    assert document["own_tokens"] < document["answer_tokens"] / 2
    assert evaluated["own_tokens"] == evaluated["answer_tokens"]
    assert document["acceptance"]["pooled_interval"] is None
    assert "too few" in document["acceptance"]["interval_reason"]
    low, high = evaluated["acceptance"]["pooled_interval"]
    assert low < evaluated["acceptance"]["pooled"] < high
