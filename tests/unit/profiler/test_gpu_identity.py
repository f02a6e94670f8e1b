"""Devices of a run are joined to sampled GPUs by what they are, never by where they stand."""

from __future__ import annotations

from typing import Any

from profiler.gpu_identity import GpuUse, gpu_uses


def gpu(uuid: str, pci: str | None = None, slice_of: str | None = None) -> dict[str, Any]:
    return {"uuid": uuid, "pci_bus_id": pci, "slice_of": slice_of}


def device(name: str, role: str, index: int, uuid: str | None, pci: str | None = None) -> dict[str, Any]:
    return {"name": name, "role": role, "index": index, "uuid": uuid, "pci": pci}


def uses(devices: object, gpus: object, **hardware: object) -> dict[str, GpuUse] | None:
    return gpu_uses({"devices": devices, "hardware": {"gpus": gpus, **hardware}})


gpus = [gpu("GPU-a", "00000000:01:00.0"), gpu("GPU-b", "00000000:02:00.0")]


def test_permuted_devices_keep_their_own_readings() -> None:
    found = uses([device("cuda:0", "target", 0, "GPU-b"), device("cuda:1", "drafter", 0, "GPU-a")], gpus)
    assert found == {
        "GPU-b": GpuUse("cuda:0", (("target", 0),)),
        "GPU-a": GpuUse("cuda:1", (("drafter", 0),)),
    }
    assert found["GPU-b"].label == "cuda:0 target 0"


def test_pci_address_serves_where_there_is_no_uuid() -> None:
    found = uses([device("cuda:0", "target", 0, None, "0000:02:00.0")], gpus)
    assert found == {"GPU-b": GpuUse("cuda:0", (("target", 0),))}


def test_address_that_two_gpus_share_joins_neither() -> None:
    same = [gpu("GPU-a", "00000000:01:00.0"), gpu("GPU-b", "00000000:01:00.0")]
    assert uses([device("cuda:0", "target", 0, None, "00000000:01:00.0")], same) == {}


def test_device_that_is_not_listed_is_not_guessed() -> None:
    # It has a uuid, so it is another GPU, whatever its address or place.
    assert uses([device("cuda:0", "target", 0, "GPU-c", "00000000:01:00.0")], gpus) == {}
    assert uses([device("logical:0", "target", 0, None)], gpus) == {}


def test_slice_is_joined_though_cuda_does_not_say_that_it_is_one() -> None:
    sliced = [gpu("GPU-a", "00000000:01:00.0"), gpu("MIG-5e", None, "GPU-a")]
    found = uses([device("cuda:0", "target", 0, "GPU-5E", "00000000:01:00.0")], sliced)
    assert found == {"MIG-5e": GpuUse("cuda:0", (("target", 0),))}


def test_two_stages_on_one_gpu_are_both_named() -> None:
    found = uses([device("cuda:0", "target", 0, "GPU-a"), device("cuda:0", "drafter", 0, "GPU-a")], gpus)
    assert found is not None
    assert found["GPU-a"].label == "cuda:0 target 0 + drafter 0"


def test_command_that_is_not_our_trainer_uses_what_cuda_shows() -> None:
    assert uses(None, gpus, visible_gpus=["GPU-b", "GPU-a"]) == {
        "GPU-b": GpuUse("cuda:0"),
        "GPU-a": GpuUse("cuda:1"),
    }
    assert uses(None, gpus, visible_gpus=None) is None
    assert uses(None, gpus, visible_gpus=[]) == {}


def test_strange_manifests_are_no_crash() -> None:
    assert gpu_uses({}) is None
    assert uses("x", [1, {"name": "no uuid"}]) == {}
    assert uses([3, {}, {"uuid": 5, "role": 1}], None) == {}
