import torch
from torch import nn

from dflash.seeded_weights import build_seeded, draw_seeded


def weights(seed, dtype=torch.float32):
    module = build_seeded(
        lambda: nn.Sequential(nn.Linear(64, 128, bias=False), nn.RMSNorm(128)),
        seed=seed,
        std=0.02,
        dtype=dtype,
    )
    return module.state_dict()


def test_same_seed_gives_the_same_weights_and_another_seed_others():
    first, again, other = weights(1), weights(1), weights(2)
    assert torch.equal(first["0.weight"], again["0.weight"])
    assert not torch.equal(first["0.weight"], other["0.weight"])


def test_matrices_are_normal_and_vectors_ones():
    drawn = weights(0)
    assert abs(drawn["0.weight"].std().item() - 0.02) < 0.002
    assert torch.equal(drawn["1.weight"], torch.ones(128))


def test_dtype_is_honoured():
    assert weights(0, torch.bfloat16)["0.weight"].dtype == torch.bfloat16


def test_global_generator_and_default_device_are_left_alone():
    before = torch.get_rng_state()
    weights(3)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.empty(1).device.type == "cpu"


def test_single_matrix_equals_the_parameter_of_that_name():
    single = draw_seeded("0.weight", (128, 64), seed=5, std=0.02, dtype=torch.float32)
    assert torch.equal(single, weights(5)["0.weight"])
