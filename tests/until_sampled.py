"""Commands that are recorded for as long as a test needs, whatever the machine is busy with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from profiler.samplers.base import Reading, Sampler


def until_sampled(monkeypatch: pytest.MonkeyPatch, mark: Path, times: dict[type[Sampler], int]) -> str:
    """Code that ends once samplers of this process have sampled so often, however late they come to it.

    `mark`: the file that tells it so.
    """
    left = dict(times)

    def count(kind: type[Sampler], sample: Callable[[Any], Iterable[Reading]]) -> None:
        def counted(self: Any) -> Iterator[Reading]:
            yield from sample(self)
            left[kind] -= 1
            if max(left.values()) <= 0:
                mark.touch()

        monkeypatch.setattr(kind, "sample", counted)

    for kind in times:
        count(kind, kind.sample)
    return f"import os, time\nwhile not os.path.exists({str(mark)!r}): time.sleep(0.01)"
