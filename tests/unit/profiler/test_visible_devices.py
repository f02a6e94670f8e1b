"""CUDA_VISIBLE_DEVICES in all its forms: the table of cases, and what is never guessed."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from profiler.samplers.sensors import GpuDevice
from profiler.visible_devices import NoneVisible, VisibleDevice, visible_devices

cases = Path(__file__).parents[2] / "data" / "cases" / "nvml"
table = (cases / "c065_cvd_strings.tsv").read_text(encoding="utf-8")
rows = list(csv.DictReader(table.splitlines(), delimiter="\t", quoting=csv.QUOTE_NONE))


def inventory() -> list[GpuDevice]:
    """Eight GPUs of one model; the first holds the MIG slice that the table names."""
    uuids = json.loads((cases / "c065_inventory.json").read_text())["nvml_uuids"]
    gpus = [GpuDevice(key=uuid, name="Fake GPU", index=i) for i, uuid in enumerate(uuids)]
    part = GpuDevice(
        key="MIG-aaaa0000-0000-0000-0000-000000000001", name="slice", index=0, slice_of=uuids[0], mig=True
    )
    return [gpus[0], part, *gpus[1:]]


def told(device: VisibleDevice) -> str:
    if device.slice_index is not None:
        return f"mig:{device.gpu}/{device.slice_index}"
    if device.gpu_instance is not None:
        return f"mig:{device.gpu} GI {device.gpu_instance} CI {device.compute_instance}"
    return str(device.gpu)


def test_the_table_is_whole() -> None:
    assert len(rows) == 21


@pytest.mark.parametrize("row", rows, ids=[row["case"] for row in rows])
def test_every_form_maps_as_cuda_does(row: dict[str, str]) -> None:
    text = None if row["cuda_visible_devices"] == "<unset>" else row["cuda_visible_devices"]
    found = visible_devices(text, inventory(), row["cuda_device_order"])
    expected = row["expected_nvml_indices_in_cuda_order"]
    if expected == "ASK_CUDA":
        assert isinstance(found, NoneVisible)
        assert found.ask_cuda
        assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in str(found)
    elif expected == "":
        assert isinstance(found, NoneVisible)
        assert not found.ask_cuda
        assert str(found).startswith("no visible GPU because ")
    else:
        assert not isinstance(found, NoneVisible)
        assert ",".join(map(told, found)) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "CUDA_VISIBLE_DEVICES is empty"),
        ("-1", "begins with no number of a GPU"),
        ("9", "the driver lists 8"),
        ("0,1,0", "names GPU 0 twice"),
        ("GPU-0000000", "fits 8 GPUs"),
        ("GPU-deadbeef", "fits no uuid"),
        ("GPU-00000003,GPU-00000003-1111-2222-3333-444444444443", "names one GPU twice"),
        ("MIG-x,MIG-x", "names one MIG slice twice"),
    ],
)
def test_reason_names_what_is_wrong(text: str, words: str) -> None:
    assert words in str(visible_devices(text, inventory(), "PCI_BUS_ID"))


def test_without_gpus_the_driver_is_the_reason() -> None:
    assert str(visible_devices(None, [])) == "no visible GPU because the driver lists none"


def test_numbers_are_known_without_an_order_only_among_equal_models() -> None:
    equal = [GpuDevice(key=f"GPU-{i}", name="A", index=i) for i in range(2)]
    mixed = [equal[0], GpuDevice(key="GPU-1", name="B", index=1)]
    assert visible_devices("1", equal) == (VisibleDevice(uuid="GPU-1", gpu=1),)
    found = visible_devices("1", mixed)
    assert isinstance(found, NoneVisible)
    assert found.ask_cuda
    assert visible_devices("GPU-1", mixed) == (VisibleDevice(uuid="GPU-1", gpu=1),)  # a uuid needs no order


def test_gpu_that_is_lost_does_not_shift_the_numbers_of_the_others() -> None:
    left = [GpuDevice(key=f"GPU-{i}", name="A", index=i) for i in (0, 2)]
    found = visible_devices("2,0", left, "PCI_BUS_ID")
    assert found == (VisibleDevice(uuid="GPU-2", gpu=2), VisibleDevice(uuid="GPU-0", gpu=0))
    assert visible_devices("0,1,2", left, "PCI_BUS_ID") == (VisibleDevice(uuid="GPU-0", gpu=0),)


def test_old_name_of_a_slice_is_resolved_where_its_instances_are_known() -> None:
    parent = GpuDevice(key="GPU-0", name="A", index=0, mig=True)
    part = GpuDevice(
        key="MIG-7", name="s", index=0, slice_of="GPU-0", mig=True, gpu_instance=3, compute_instance=0
    )
    found = visible_devices("MIG-GPU-0/3/0", [parent, part])
    assert not isinstance(found, NoneVisible)
    assert found[0].uuid == "MIG-7"
