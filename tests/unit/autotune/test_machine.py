"""Which GPUs a search may use."""

import pytest

from autotune.machine import Gpu, read_machine, visible_gpus

gpus = (Gpu("A", "GPU-aa1", 1), Gpu("B", "GPU-bb2", 1), Gpu("C", "GPU-bb3", 1))


def test_machine_without_gpus_says_why():
    machine = read_machine()
    assert machine.cpus >= 1
    assert machine.cpu
    assert bool(machine.gpus) != bool(machine.gpu_reason)


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        (None, "ABC"),
        ("", ""),
        ("-1", ""),
        ("2,0", "CA"),
        ("0,7,1", "A"),  # everything after an entry that fits nothing is hidden
        ("GPU-bb3", "C"),
        ("GPU-bb", ""),  # fits two
        ("0,0", "A"),
    ],
)
def test_visible_gpus_are_those_that_cuda_shows(visible, names):
    assert "".join(gpu.name for gpu in visible_gpus(gpus, visible)) == names


def test_equal_cards_make_equal_machines_whatever_their_uuids(gpu_machine):
    one, two = gpu_machine(2), gpu_machine(3)
    assert one.describe() == gpu_machine(2).describe()
    assert one.describe() != two.describe()
