"""Which links a diagnosis suspects, and what measuring them by themselves adds to its evidence.

A slow copy in a run has many reasons: the link, the memory behind it, who else uses it. Measured alone, with
nothing else going on, a link says which. Pure; knows nothing of how links are measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from dflash.contract.link_facts import LinkEdge, LinkFacts, host
from profiler.finding import Diagnosis, Evidence, Finding
from profiler.rules import (
    h2d_on_drafter_critical_path,
    host_staging_queue_too_deep,
    link_bound,
    numa_remote_host_buffers,
    shared_queue_cross_device,
    straggling_link,
    sync_d2h_on_critical_path,
)
from profiler.rules.verdicts import amount, quantity
from profiler.timeline import Timeline

most_links: Final = 4  # of a cause: the slowest ones, and the fastest to hold them against
paths: Final = ("peer", "pinned", "pageable")
named: Final = "links by themselves"


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """One direction of a link as a run used it. Ends are device names, or `host`."""

    src: str
    dst: str
    path: str
    gb_per_s: float  # of the run's own copies

    @property
    def way(self) -> tuple[str, str, str]:
        return self.src, self.dst, self.path


def suspected_links(timeline: Timeline, findings: Iterable[Finding]) -> dict[str, tuple[Suspect, ...]]:
    """By cause: the links that supported findings put the blame on, the slowest first."""
    found = {f.cause: tuple(_suspects(timeline, f.cause)) for f in findings if f.supported}
    return {cause: suspects for cause, suspects in found.items() if suspects}


def _suspects(timeline: Timeline, cause: str) -> Iterator[Suspect]:
    if cause not in _blamed:
        return
    stages, host_end = _blamed[cause]
    copies = timeline.copies
    mine = copies[copies["stage"].isin(stages) & copies["path"].isin(paths) & (copies["gb_per_s"] > 0)]
    links = sorted(
        (
            Suspect(src=_end(src), dst=_end(dst), path=str(path), gb_per_s=float(speed))
            for src, dst, path, speed in mine[["src", "dst", "path", "gb_per_s"]].itertuples(index=False)
        ),
        key=lambda link: link.gb_per_s,
    )
    chosen = [link for link in links if _ends_as(link, host_end)]
    yield from chosen if len(chosen) <= most_links else [*chosen[: most_links - 1], chosen[-1]]


def _end(name: object) -> str:
    return host if name in ("cpu", "host") else str(name)


def _ends_as(link: Suspect, host_end: str | None) -> bool:
    """Whether host memory is that end of the link; `one`: either, `none`: neither; None: no matter."""
    if host_end == "none":
        return host not in (link.src, link.dst)
    if host_end == "one":
        return host in (link.src, link.dst)
    return host_end is None or (link.src if host_end == "src" else link.dst) == host


_both: Final = ("target", "drafter", "link")
_blamed: Final[dict[str, tuple[Sequence[str], str | None]]] = {
    sync_d2h_on_critical_path.cause: (("target",), "dst"),
    h2d_on_drafter_critical_path.cause: (("drafter",), "src"),
    host_staging_queue_too_deep.cause: (("drafter",), "src"),
    shared_queue_cross_device.cause: (("drafter",), "none"),
    numa_remote_host_buffers.cause: (_both, "one"),
    straggling_link.cause: (_both, None),
    link_bound.cause: (("link",), None),
}


def tell_measured(
    diagnosis: Diagnosis, suspects: Mapping[str, Sequence[Suspect]], facts: LinkFacts
) -> Diagnosis:
    """The diagnosis with every suspected link's own speed among the evidence."""
    return _with_evidence(
        diagnosis,
        {
            cause: [_measured(link, facts.edge(*link.way)) for link in links]
            for cause, links in suspects.items()
        },
    )


def tell_unmeasured(
    diagnosis: Diagnosis, suspects: Mapping[str, Sequence[Suspect]], reason: str
) -> Diagnosis:
    """The diagnosis, saying of every suspicion why it was not measured on the spot."""
    told = Evidence(f"{named}, measured now", None, "GB/s", f"n/a: {reason}", reason)
    return _with_evidence(diagnosis, {cause: [told] for cause in suspects})


def _measured(link: Suspect, edge: LinkEdge | None) -> Evidence:
    name = f"{link.src} to {link.dst} ({link.path}) by itself, measured now"
    if edge is None or edge.gb_per_s is None:
        return quantity(name, None, "GB/s", (edge.reason if edge else None) or "it was not measured")
    words = f"{amount(1e9 * edge.gb_per_s, 'B/s')}, in the run {amount(1e9 * link.gb_per_s, 'B/s')}"
    if edge.correct is False:
        words += f"; WRONG: {edge.wrong_words} of {edge.words} words"
    if edge.buffer_node is not None:
        words += f"; buffer on memory node {edge.buffer_node}"
    return Evidence(name, edge.gb_per_s, "GB/s", words)


def _with_evidence(diagnosis: Diagnosis, more: Mapping[str, Sequence[Evidence]]) -> Diagnosis:
    findings = tuple(
        replace(finding, evidence=(*finding.evidence, *more[finding.cause]))
        if finding.supported and finding.cause in more
        else finding
        for finding in diagnosis.findings
    )
    return replace(diagnosis, findings=findings)
