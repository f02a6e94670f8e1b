from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import pytest

from reports.pipeline_map import Card, NoteCard, PipelineMap, QueueCard, StageCard, describe, draw_map

svg = "{http://www.w3.org/2000/svg}"


def stage(title: str, *, limits: bool = False) -> StageCard:
    shares = {"work": 0.7, "copy": 0.2, "wait": 0.1}
    return StageCard(title=title, device="cuda:0", shares=shares, lines=(("busy", "70 %"),), limits=limits)


def queue(title: str, depth: float | None = 1.5) -> QueueCard:
    return QueueCard(title=title, capacity=2, mean_depth=depth, full_share=0.5, empty_share=0.1)


def pipeline(targets: int, drafters: int, queues: int) -> PipelineMap:
    columns: tuple[tuple[Card, ...], ...] = (
        (stage("prefetch"),),
        (queue("q_pre"),),
        tuple(stage(f"target {i}", limits=True) for i in range(targets)),
        (NoteCard(title="transport", lines=(("peer", "3 GB"),), dashed=True),),
        tuple(queue(f"q_hs.{i}") for i in range(queues)),
        tuple(stage(f"drafter {i}") for i in range(drafters)),
        (NoteCard(title="optimizer", lines=()),),
    )
    return PipelineMap(columns=columns)


def boxes(root: ElementTree.Element) -> list[tuple[float, float, float, float]]:
    found = []
    for group in root.iter(f"{svg}g"):
        x, y = map(float, re.findall(r"[-\d.]+", group.attrib["transform"]))
        rect = group.find(f"{svg}rect")
        assert rect is not None
        found.append((x, y, float(rect.attrib["width"]), float(rect.attrib["height"])))
    return found


@pytest.mark.parametrize("tall", [False, True], ids=["wide", "tall"])
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 1, 1), (7, 1, 1), (5, 3, 3), (2, 2, 1)])
def test_boxes_fit_the_picture_and_do_not_overlap(shape: tuple[int, int, int], tall: bool) -> None:
    root = ElementTree.fromstring(draw_map(pipeline(*shape), tall=tall))
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    placed = boxes(root)
    assert len(placed) == 4 + sum(shape)
    for i, (x, y, w, h) in enumerate(placed):
        assert x >= 0
        assert y >= 0
        assert x + w <= width + 0.5
        assert y + h <= height + 0.5
        for x2, y2, w2, h2 in placed[i + 1 :]:
            assert x + w <= x2 or x2 + w2 <= x or y + h <= y2 + 0.1 or y2 + h2 <= y + 0.1


def test_a_queue_each_is_joined_to_its_own_drafter_and_a_shared_one_to_all() -> None:
    each = ElementTree.fromstring(draw_map(pipeline(1, 3, 3)))
    shared = ElementTree.fromstring(draw_map(pipeline(1, 3, 1)))
    arrows = [len(root.findall(f"{svg}path")) for root in (each, shared)]
    assert arrows == [1 + 1 + 1 + 3 + 3 + 3, 1 + 1 + 1 + 1 + 3 + 3]


def test_the_picture_says_itself_in_words() -> None:
    words = describe(pipeline(1, 1, 1))
    assert "target 0: limits the run; busy 70 %." in words
    assert "q_pre: mean depth 1.5 of 2, full 50\u00a0%, empty 10\u00a0%." in words
    root = ElementTree.fromstring(draw_map(pipeline(1, 1, 1)))
    assert root.findtext(f"{svg}desc") == words
    assert root.attrib["role"] == "img"


def test_an_unknown_depth_is_not_an_empty_queue() -> None:
    card = QueueCard(title="q", capacity=None, mean_depth=None, full_share=None, empty_share=None)
    assert card.level == "n/a"
    assert card.lines == ("full n/a", "empty n/a")


def test_names_stay_text() -> None:
    hostile = PipelineMap(
        columns=((stage("</text><script>"),), (NoteCard(title="<!--", lines=(("<a>", "&"),)),))
    )
    root = ElementTree.fromstring(draw_map(hostile))
    tags = {element.tag.removeprefix(svg) for element in root.iter()}
    assert "script" not in tags
    assert "a" not in tags


def test_an_empty_pipeline_draws_nothing_but_is_a_picture() -> None:
    root = ElementTree.fromstring(draw_map(PipelineMap(columns=())))
    assert root.tag.endswith("svg")
    assert not [element for element in root.iter() if element.tag.endswith("text")]
