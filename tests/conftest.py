"""What every test gets: a clean environment, and skips where hardware is missing."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import settings

# Set before any test module is imported: nothing here may reach for a model hub.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

# Shared machines stall: an example's duration says nothing, and CI must be repeatable.
settings.register_profile("default", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("default")

browser_names = ("chromium", "chromium-browser", "google-chrome", "chrome")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No run directory, colour wish or visible-device list leaks in from outside."""
    for name in ("DFLASH_RUN_DIR", "NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def data_dir() -> Path:
    """The files that tests read."""
    return Path(__file__).parent / "data"


@pytest.fixture
def repository() -> Path:
    """The root of the source tree."""
    return Path(__file__).parents[1]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for name, missing in (("gpu", _gpu_missing), ("browser", _browser_missing)):
            if item.get_closest_marker(name) is not None and (reason := missing()):
                item.add_marker(pytest.mark.skip(reason=reason))


def _gpu_missing() -> str | None:
    import torch

    return None if torch.cuda.is_available() else "needs CUDA"


def _browser_missing() -> str | None:
    return None if any(shutil.which(name) for name in browser_names) else "needs a headless browser"
