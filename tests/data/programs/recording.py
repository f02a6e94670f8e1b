"""Records `event_source.py` in a process that a test can kill. For a fork server, so that it starts fast."""

import os
import sys
from pathlib import Path

from profiler.recorder import RecordOptions, record


def record_source(run_path: Path, repository: Path) -> None:
    """Record until somebody is killed; the process ends as the recording says."""
    os.environ["PYTHONPATH"] = str(repository)
    command = [sys.executable, str(Path(__file__).with_name("event_source.py")), str(run_path)]
    options = RecordOptions(gpu="none", gil=False, host_interval_s=0.2)
    sys.exit(record(command, run_path, options).exit_code)
