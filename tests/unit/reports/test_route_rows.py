from __future__ import annotations

from pathlib import Path
from typing import Any

from dflash.contract.rundir import RunDir
from profiler.examination import examine
from profiler.run import Run
from profiler.timeline import Timeline
from reports.route_rows import RouteRow, list_routes
from reports.run_report import render_run
from tests.html_outline import Outline
from tests.played_pipeline import play
from tests.run_builder import RunBuilder

wrong = (
    "peer copies are refused: 12 of 1000 words arrived wrong from cuda:0 to cuda:1; IOMMU or ACS settings "
    "are the usual cause"
)
devices = [
    {"name": "cuda:0", "role": "target", "index": 0, "uuid": "GPU-a"},
    {"name": "cuda:1", "role": "drafter", "index": 0, "uuid": "GPU-b"},
]


def edge(src: str, dst: str, path: str, **more: Any) -> dict[str, Any]:
    return {
        "src": src,
        "dst": dst,
        "path": path,
        "peer_gb_per_s": None,
        "pinned_gb_per_s": None,
        "why": "",
        **more,
    }


def copies(builder: RunBuilder, *ways: tuple[str, str, str, float]) -> None:
    """A second of copies each: src, dst, path, GB."""
    for window in range(30):
        builder.window(window, float(window + 1), 100)
    for at, (src, dst, path, size) in enumerate(ways):
        builder.span(
            "target", 0, "copy", 12.0 + at, 13.0 + at, src=src, dst=dst, path=path, bytes=int(size * 1e9)
        )


def rows_of(builder: RunBuilder, edges: object) -> tuple[RouteRow, ...]:
    run = Run.open(builder.finish(devices=devices, transport_edges=edges))
    return list_routes(run, Timeline.of(run))


def said(words: str) -> str:
    return words.replace("\u00a0", " ")


def test_a_way_stands_with_both_probes_and_what_the_run_made_of_it(tmp_path: Path) -> None:
    builder = RunBuilder(tmp_path / "run")
    copies(builder, ("cuda:0", "cuda:1", "peer", 300.0), ("cuda:1", "cuda:0", "peer", 2.0))
    why = "faster as measured"
    (row,) = rows_of(
        builder, [edge("cuda:0", "cuda:1", "peer", peer_gb_per_s=388.0, pinned_gb_per_s=27.4, why=why)]
    )
    assert (row.src, row.dst, row.path) == ("target 0 (cuda:0)", "drafter 0 (cuda:1)", "peer")
    assert [said(words) for words in (row.peer, row.pinned, row.seen)] == [
        "388 GB/s",
        "27.4 GB/s",
        "300 GB/s",
    ]
    assert (row.why, row.refused) == (why, False)


def test_through_the_host_both_halves_are_told(tmp_path: Path) -> None:
    builder = RunBuilder(tmp_path / "run")
    copies(builder, ("cuda:0", "host", "pinned", 50.0), ("host", "cuda:1", "pinned", 40.0))
    (row,) = rows_of(builder, [edge("cuda:0", "cuda:1", "pinned", pinned_gb_per_s=27.0, why=wrong)])
    assert said(row.seen) == "down 50.0 GB/s, up 40.0 GB/s"
    assert row.peer == "n/a: not measured"
    assert row.refused


def test_what_is_unknown_is_no_zero_and_strangers_are_no_crash(tmp_path: Path) -> None:
    edges = [
        edge("cuda:0", "cuda:0", "within"),
        edge("x", "y", "peer", peer_gb_per_s="fast"),
        7,
        {"src": 1},
        None,
    ]
    within, odd = rows_of(RunBuilder(tmp_path / "run"), edges)
    assert (within.peer, within.pinned, within.seen) == ("–", "–", "–")
    assert odd.peer == "n/a: not measured"
    assert odd.seen == "n/a: no such copies were timed"
    assert rows_of(RunBuilder(tmp_path / "none"), None) == ()
    assert rows_of(RunBuilder(tmp_path / "odd"), {"a": 1}) == ()


def test_the_page_draws_them_at_the_map_and_marks_what_arrived_wrong(tmp_path: Path) -> None:
    ways = [edge("logical:0", "logical:2", "pinned", peer_gb_per_s=1.0, why=wrong + "<script>")]
    path = play(tmp_path / "run", windows=12)
    assert "Ways between devices" not in render_run(examine(path))
    RunDir(path).update(transport_edges=ways)
    page = render_run(examine(path))
    assert page.index('id="pipeline"') < page.index("Ways between devices") < page.index('id="findings"')
    assert "arrived wrong" in Outline(page).text
    assert "&lt;script&gt;" in page
