"""The whole target writes its own greedy text; one pass over a text gives the states that training sees."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from dflash.contract.errors import ConfigError, DFlashError
from dflash.contract.sections import TargetConfig
from dflash.evaluation import whole_target
from dflash.evaluation.whole_target import WholeTarget

golden = Path(__file__).parents[3] / "data" / "golden"
requests = json.loads((golden / "infer_golden.json").read_text())["generate"]
cpu = torch.device("cpu")
prompts = [request["prompt"] for request in requests]
none = frozenset[int]()


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Many small products: more threads would wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def target():
    return WholeTarget(TargetConfig(model=str(golden / "tiny_target")), cpu, (1, 3, 5))


def test_it_writes_what_another_decoder_wrote(target):
    """The texts that dflash 0.1.0 decoded with a drafter."""
    assert target.answer(prompts, 32, none) == [request["new_tokens"] for request in requests]


def test_prompts_of_several_lengths_are_answered_as_each_alone(target):
    some = [prompts[0], prompts[1][:3], prompts[2] * 2, prompts[3][:1]]
    assert target.answer(some, 12, none) == [target.answer([prompt], 12, none)[0] for prompt in some]


def test_an_answer_ends_with_its_first_stop_token(target):
    wanted = [request["new_tokens"] for request in requests]
    stops = frozenset([wanted[0][4], wanted[1][0]])
    cut = [next((row[: i + 1] for i, t in enumerate(row) if t in stops), row) for row in wanted]
    assert target.answer(prompts, 32, stops) == cut
    assert {len(row) for row in cut} != {32}


def test_more_tokens_than_positions_are_refused(target):
    with pytest.raises(ConfigError, match="positions") as caught:
        target.answer([prompts[0]], 505, none)
    assert (caught.value.found, caught.value.expected) == ("513 tokens", "at most 512")


def test_states_are_those_of_the_golden_features(target):
    held = load_file(golden / "heldout.safetensors")
    for ids, features in zip(held["eval_text"], held["eval_features"], strict=True):
        states = target.read(ids)
        torch.testing.assert_close(states.taps, features, rtol=1e-4, atol=1e-4)
        assert states.greedy[7:-1].tolist() == ids[8:].tolist()


@pytest.mark.parametrize("shape", ["tiny", "tiny-hybrid"])
def test_states_are_those_that_training_sees(shape):
    """The trainer's target is cut behind its last tap and has no final norm."""
    from dflash.contract.config import load_config
    from dflash.packing import lay_out
    from dflash.target import Target, load_target

    config = load_config(None, [f"target.model=random:{shape}", "drafter.taps=[0,2]"])
    whole = WholeTarget(config.target, cpu, (0, 2))
    trained = Target(load_target(config), cpu)
    ids = torch.randint(0, 500, (20,), generator=torch.Generator().manual_seed(1))
    layout = lay_out(torch.tensor([20]).numpy(), "padded")
    seen = trained.run(ids, torch.arange(20), (20,), layout)
    torch.testing.assert_close(whole.read(ids).taps, seen, rtol=1e-4, atol=1e-5)


def test_a_hybrid_decodes_as_one_pass_has_it():
    """Its recurrent state goes along with the cache, padding on the left leaves it alone."""
    whole = WholeTarget(TargetConfig(model="random:tiny-hybrid"), cpu, (0,))
    some = [[5, 6, 7, 8], [9, 10], [11, 12, 13, 14, 15, 16]]
    for prompt, written in zip(some, whole.answer(some, 10, none), strict=True):
        one_pass = whole.read(torch.tensor(prompt + written)).greedy
        assert one_pass[len(prompt) - 1 : -1].tolist() == written


def test_where_it_runs_no_attention_plans_and_what_is_too_large_says_so(monkeypatch):
    asked = []

    def read(*_given):
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(whole_target, "avoid_attention_plans", asked.append)
    monkeypatch.setattr(whole_target, "_read", read)
    with pytest.raises(DFlashError, match="the target does not fit"):
        WholeTarget(TargetConfig(model="random:tiny"), cpu, (0,))
    assert asked == [cpu]
