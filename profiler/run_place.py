"""Whether a run's GPUs are those of this machine and free: only then can something be measured on them now.

Knows nothing of what is measured.
"""

from __future__ import annotations

from typing import Final

from profiler.ceilings import used_gpus
from profiler.run import Run
from profiler.samplers.sensors import GpuSensors

busy_pct: Final = 10.0  # utilisation from which a GPU is somebody's


def why_not_here(run: Run, sensors: GpuSensors) -> str | None:
    """Why nothing can be measured on the run's GPUs now; None where it can."""
    if run.emulated:
        return "logical devices have declared speeds, so there is nothing to measure"
    if run.status.status == "running":
        return "the run is still going"
    wanted = [device.get("uuid") for device in used_gpus(run.manifest)]
    if not wanted or not all(wanted):
        return "the run does not say which GPUs it used"
    reason = sensors.open()
    try:
        if reason is not None:
            return f"this is not the run's machine: {reason}"
        places = {device.key: place for place, device in enumerate(sensors.devices())}
        if missing := [uuid for uuid in wanted if uuid not in places]:
            return f"this is not the run's machine: {missing[0]} is not here"
        for device in used_gpus(run.manifest):
            answer = sensors.read(places[str(device["uuid"])], ["util_pct"])[0]
            if isinstance(answer, float) and answer >= busy_pct:
                return f"{device.get('name')} is busy ({answer:.0f} % utilised)"
        return None
    finally:
        sensors.close()
