"""Which GPUs a search may use."""

import pytest

from autotune.machine import Gpu, Machine, find_peers, read_machine, visible_gpus
from profiler.samplers.sensors import GpuDevice

listed = [
    GpuDevice(key=uuid, name=name, index=index, memory_bytes=1)
    for index, (name, uuid) in enumerate([("A", "GPU-aa1"), ("B", "GPU-bb2"), ("C", "GPU-bb3")])
]


def test_machine_without_gpus_says_why():
    machine = read_machine()
    assert machine.cpus >= 1
    assert machine.cpu
    assert machine.host_bytes
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
        ("0,0", ""),
    ],
)
def test_visible_gpus_are_those_that_cuda_shows(visible, names):
    gpus, reason = visible_gpus(listed, visible, "PCI_BUS_ID")
    assert "".join(gpu.name for gpu in gpus) == names
    assert (reason or "").startswith("no visible GPU because ") == (not names)


def test_different_models_by_number_are_not_guessed():
    gpus, reason = visible_gpus(listed, "0", None)
    assert gpus == ()
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in reason
    assert len(visible_gpus(listed, None, None)[0]) == 3  # all of them need no order


def test_slice_that_the_driver_does_not_list_is_still_a_device():
    gpus, reason = visible_gpus(listed, "MIG-unlisted", None)
    assert [(gpu.uuid, gpu.memory_bytes) for gpu in gpus] == [("MIG-unlisted", None)]
    assert reason is None


def test_equal_cards_make_equal_machines_whatever_their_uuids(gpu_machine):
    one, two = gpu_machine(2), gpu_machine(3)
    assert one.describe() == gpu_machine(2).describe()
    assert one.describe() != two.describe()


class Reaching:
    """A driver that knows of pairs; others it does not tell."""

    def __init__(self, **known):
        self.known = known

    def devices(self):
        return listed

    def reaches(self, first, second):
        return self.known.get(f"p{first}{second}", self.known.get(f"p{second}{first}"))


def test_peers_are_told_by_the_places_of_visible_gpus():
    gpus = visible_gpus(listed, "2,0", "PCI_BUS_ID")[0]
    assert find_peers(gpus, Reaching(p02=True)) == {(0, 1)}
    assert find_peers(gpus, Reaching(p02=False)) == frozenset()
    assert find_peers(gpus, Reaching()) is None
    assert find_peers(gpus[:1], Reaching(p02=True)) is None, "one GPU has no pairs"
    assert find_peers((*gpus, Gpu("MIG slice", "MIG-unlisted", None)), Reaching(p02=True)) is None


def test_islands_are_groups_that_reach_each_other():
    def islands(peers):
        gpus = tuple(Gpu("a", f"GPU-{i}", None) for i in range(5))
        return Machine(cpu="a", cpus=1, gpus=gpus, peers=peers).islands

    assert islands(frozenset({(0, 1), (2, 3), (1, 4)})) == ((0, 1, 4), (2, 3))
    assert islands(frozenset()) == ((0,), (1,), (2,), (3,), (4,))
    assert islands(None) == ((0, 1, 2, 3, 4),)
