"""What every test gets: a clean environment, and only tests that this machine can run."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

# Set before any test module is imported: nothing here may reach for a model hub.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

# Tokens are kept for one session of tests, and nowhere else.
_cache = tempfile.mkdtemp(prefix="dflash-tests-")
os.environ["XDG_CACHE_HOME"] = _cache
atexit.register(shutil.rmtree, _cache, ignore_errors=True)

# A job that a shell starts in the background ignores Ctrl-C, and so would all that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Shared machines stall: an example's duration says nothing. Every run draws the same examples, so that a test
# that turns red does so for a change; others are drawn with --hypothesis-profile=explore.
settings.register_profile("default", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None)
settings.load_profile("default")

# These judge by times, by who had a core, or of all processes: no other test may run beside them.
alone = {
    "integration": {
        "test_field_stories",
        "test_foreign_trainer",
        "test_gil_contention",
        "test_held_parts",
        "test_injected_faults",
        "test_injected_links",
        "test_kill_anytime",
        "test_profiler_overhead",
        "test_report_in_browser",
        "test_study_in_browser",
        "test_trials_in_place",
    },
    "autotune": {"test_in_place"},
    "profiler": {"test_gil_holder", "test_recorder"},
    "samplers": {"test_gil", "test_gil_wait"},
    "cli": {"test_fast_start"},
}

browser_names = ("chromium", "chromium-browser", "google-chrome", "chrome")


def pytest_addoption(parser: pytest.Parser) -> None:
    """What may be asked for beyond the suite."""
    parser.addoption("--kills", type=int, default=16, help="how often test_kill_anytime.py kills")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No run directory, colour wish or size of a terminal leaks in from outside."""
    for name in ("DFLASH_RUN_DIR", "NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE", "COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def data_dir() -> Path:
    """The files that tests read."""
    return Path(__file__).parent / "data"


@pytest.fixture
def repository() -> Path:
    """The root of the source tree."""
    return Path(__file__).parents[1]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests that need hardware or a browser this machine lacks are not part of its suite."""
    for item in items:
        if item.path.stem in alone.get(item.path.parent.name, ()):
            item.add_marker("alone")
    lacking = [name for name, has in (("gpu", _has_gpu), ("browser", _has_browser)) if not has()]
    left_out = [item for item in items if any(item.get_closest_marker(name) for name in lacking)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _has_browser() -> bool:
    return any(shutil.which(name) for name in browser_names)
