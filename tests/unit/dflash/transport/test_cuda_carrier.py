"""What the CUDA carrier asks of the driver for a slab, as far as that shows without a GPU."""

from __future__ import annotations

import csv
import gc
from pathlib import Path
from types import SimpleNamespace

import pytest

from dflash.contract.errors import DeviceError
from dflash.contract.events import silent
from dflash.transport import cuda_carrier
from dflash.transport.cuda_carrier import CudaCarrier


class Driver:
    """Stands for the CUDA runtime: keeps what is pinned; refuses when told to."""

    def __init__(self, failure: int = 0) -> None:
        self.pinned: dict[int, int] = {}
        self.failure = failure

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:  # noqa: N802 - CUDA's name
        if not self.failure:
            self.pinned[address] = size
        return self.failure

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802 - CUDA's name
        del self.pinned[address]
        return 0


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    found = Driver()
    monkeypatch.setattr(cuda_carrier, "_cudart", lambda: found)
    monkeypatch.setattr(cuda_carrier, "run_near", lambda pci, touch: None)  # the memory stays unused
    return found


def rounding_table(data_dir: Path) -> list[SimpleNamespace]:
    """What torch's own pinned allocations come to."""
    with (data_dir / "cases/transport/c045_pinned_rounding.csv").open() as lines:
        return [SimpleNamespace(**row) for row in csv.DictReader(lines)]


def test_what_is_pinned_is_what_was_asked_for(driver: Driver, data_dir: Path) -> None:
    """C045: 2.25 GiB asked are not 4 GiB taken. The memory is only mapped here, nothing touches it."""
    table = rounding_table(data_dir)
    assert max(float(row.ratio) for row in table) > 1.7, "there is something to avoid"
    for row in table:
        asked = int(float(row.requested_gib) * (1 << 30))
        slab = CudaCarrier(silent).new_slab(asked)
        assert slab.nbytes == asked
        assert driver.pinned == {slab.data_ptr(): asked}
        del slab
        gc.collect()
        assert driver.pinned == {}, "given back"


def test_slabs_never_share_a_page(driver: Driver) -> None:
    slabs = [CudaCarrier(silent).new_slab(100) for _ in range(50)]
    pages = {slab.data_ptr() // 4096 for slab in slabs}
    assert len(pages) == len(driver.pinned) == 50


def test_memory_that_cannot_be_pinned_is_refused_with_its_size(driver: Driver) -> None:
    driver.failure = 2
    with pytest.raises(DeviceError, match=r"2\.50 GB .* could not be pinned \(CUDA error 2\)") as caught:
        CudaCarrier(silent).new_slab(2_500_000_000)
    assert caught.value.where == "transport.path"
    assert "ulimit -l" in str(caught.value.remedy)
