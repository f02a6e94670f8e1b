"""Suspected links measured where the run's machine is this one, and its GPUs are free.

In a process of its own, since it needs torch, for a few seconds. What hinders it is told in the evidence.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cli.child import ask_trainer
from cli.console import say
from dflash.contract.config import load_config
from dflash.contract.errors import DFlashError
from dflash.contract.link_facts import LinkFacts, host

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from profiler.examination import Examination
    from profiler.run import Run

measuring_s: Final = 5.0
start_s: Final = 15.0  # of torch, at most
copy_mb: Final = 64

NoMeasure = Annotated[
    bool,
    typer.Option("--no-measure", help="Do not measure suspected links, even where the run's GPUs are here."),
]


def measure_suspects(examined: Examination) -> Examination:
    """The same with suspected links measured, or why not, among the evidence of what suspects them."""
    from profiler.run_place import why_not_here
    from profiler.samplers.nvml import NvmlSensors
    from profiler.suspected_links import suspected_links, tell_measured, tell_unmeasured

    diagnosis = examined.diagnosis
    suspects = suspected_links(examined.timeline, diagnosis.findings)
    if not suspects:
        return examined
    reason = why_not_here(examined.run, NvmlSensors())
    if reason is not None:
        return replace(examined, diagnosis=tell_unmeasured(diagnosis, suspects, reason))
    ways = list(dict.fromkeys(link.way for links in suspects.values() for link in links))
    try:
        facts = _measure(examined.run, ways)
    except (DFlashError, ValueError) as error:
        reason = error.what if isinstance(error, DFlashError) else str(error)
        return replace(examined, diagnosis=tell_unmeasured(diagnosis, suspects, reason))
    return replace(examined, diagnosis=tell_measured(diagnosis, suspects, facts))


def _measure(run: Run, ways: Sequence[tuple[str, str, str]]) -> LinkFacts:
    """These ways between the run's devices. Raises DFlashError, and ValueError for a senseless answer."""
    from profiler.ceilings import used_gpus
    from profiler.records import decode

    uuids = {str(device["name"]): str(device["uuid"]) for device in used_gpus(run.manifest)}
    here = {host: host, **{name: f"cuda:{place}" for place, name in enumerate(uuids)}}
    unknown = {end for src, dst, _ in ways for end in (src, dst)} - set(here)
    if unknown:
        raise DFlashError(f"the run does not say which GPU {', '.join(sorted(unknown))} is")
    say("measuring the suspected links …")
    arguments = ["links", "/dev/stdin", "--mb", str(copy_mb), "--seconds", str(measuring_s)]
    arguments += [word for src, dst, path in ways for word in ("--only", f"{here[src]},{here[dst]},{path}")]
    code, told = ask_trainer(
        arguments,
        text=load_config(None, ["devices.kind=cuda"]).to_toml(),
        limit_s=start_s + measuring_s,
        environ={**os.environ, "CUDA_VISIBLE_DEVICES": ",".join(uuids.values())},
    )
    if code != 0:
        raise DFlashError(f"the process that measures links ended with code {code}")
    return _renamed(decode(LinkFacts, json.loads(told)), {there: name for name, there in here.items()})


def _renamed(facts: LinkFacts, names: Mapping[str, str]) -> LinkFacts:
    """With the run's names of the devices."""

    def rename(entry: Any, *ends: str) -> Any:
        return replace(entry, **{end: names.get(getattr(entry, end), getattr(entry, end)) for end in ends})

    return replace(
        facts,
        devices=tuple(rename(device, "name") for device in facts.devices),
        edges=tuple(rename(edge, "src", "dst") for edge in facts.edges),
    )
