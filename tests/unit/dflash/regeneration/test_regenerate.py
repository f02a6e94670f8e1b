"""From a file of prompts to a file of answers, with an engine that a test plays."""

import json
import random

import pytest

from dflash.contract.config import load_config
from dflash.contract.errors import DataError, RunError
from dflash.contract.regeneration import RegenerationChoice
from dflash.data.conversations import Conversation, read_conversations
from dflash.regeneration import regenerate as module
from dflash.regeneration import transformers_engine
from dflash.regeneration.answers import Answer
from dflash.regeneration.regenerate import Stopped, describe, regenerate


class Played:
    """Answers "<question>!" in portions of 3, in an order of its own; what it is told to do, it does."""

    def __init__(self):
        self.asked, self.broken, self.stop_after = [], set(), None

    def answer(self, requests):
        shuffled = random.Random(0).sample(list(requests), len(requests))
        for start in range(0, len(shuffled), 3):
            if self.stop_after is not None and len(self.asked) >= self.stop_after:
                raise Stopped(15)
            portion = shuffled[start : start + 3]
            self.asked += [(request.row, request.turn) for request in portion]
            yield [(request, self._one(request)) for request in portion]

    def _one(self, request):
        question = request.messages[-1]["content"]
        if request.row in self.broken:
            return Answer(finish="error", reason="gone")
        finish = "length" if "long" in question else "stop"
        return Answer(content=question + "!", tokens=2, finish=finish)

    def describe(self):
        return {"target": "played"}

    def surroundings(self):
        return {"device": "none"}


@pytest.fixture
def engine(monkeypatch):
    played = Played()
    monkeypatch.setattr(module, "open_engine", lambda _config, _choice: played)
    monkeypatch.setattr(module, "rows_at_once", 8)
    return played


@pytest.fixture
def data(tmp_path):
    """Twenty rows: a third with two turns, one that is no row, one whose answer is cut."""
    path = tmp_path / "prompts.jsonl"
    rows = []
    for i in range(20):
        turns = [{"role": "user", "content": f"q{i}" + (" long" if i == 4 else "")}]
        if i % 3 == 0:
            turns += [{"role": "assistant", "content": "old"}, {"role": "user", "content": f"more{i}"}]
        rows.append(json.dumps({"id": i, "messages": turns}))
    rows[7] = "{"
    path.write_text("\n".join(rows) + "\n")
    return path


def carry_out(data, **options):
    config = load_config(None, [f"data.path={data}"])
    return regenerate(config, RegenerationChoice(to=str(data.parent / "out.jsonl"), **options))


def test_every_row_is_answered_or_refused_by_reason_in_order(engine, data, tmp_path):
    code, document = carry_out(data)
    assert code == 0
    assert (document["rows_read"], document["answered"], document["refused"]) == (
        20,
        18,
        {"cut off": 1, "not JSON": 1},
    )
    rows = list(read_conversations(tmp_path / "out.jsonl"))
    assert all(isinstance(row, Conversation) for row in rows)
    assert [row.id for row in rows] == [str(i) for i in range(20) if i not in (4, 7)]
    assert [m["content"] for m in rows[0].messages] == ["q0", "q0!", "more0", "more0!"]
    refused = [json.loads(line) for line in (tmp_path / "out.jsonl.refused").read_text().splitlines()]
    assert [(entry["line"], entry["reason"].partition(":")[0]) for entry in refused] == [
        (5, "cut off"),
        (8, "not JSON"),
    ]
    manifest = json.loads((tmp_path / "out.jsonl.manifest.json").read_text())
    assert manifest["state"] == "finished"
    assert manifest["identity"]["target"] == {"target": "played"}
    assert len(manifest["identity"]["data"]["prompts.jsonl"]) == 64
    assert "18 of 20 rows answered" in describe(document)


def test_cut_answers_may_be_kept_and_say_so(engine, data, tmp_path):
    _, document = carry_out(data, cut="keep")
    assert document["answered"] == 19
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["regenerated"]["finish"] for row in rows if row["id"] == "4"] == [["length"]]


@pytest.mark.parametrize("stop_after", [0, 1, 5, 9, 14, 20])
def test_a_stopped_run_goes_on_without_losing_or_repeating_a_row(engine, data, tmp_path, stop_after):
    carry_out(data)
    straight = (tmp_path / "out.jsonl").read_bytes()
    for file in tmp_path.glob("out.jsonl*"):
        file.unlink()
    engine.asked.clear()
    engine.stop_after = stop_after
    code, document = carry_out(data)
    assert (code, document["state"]) == (143, "stopped by SIGTERM")
    done = {json.loads(line)["number"] for line in (tmp_path / "out.jsonl.part").read_text().splitlines()}
    engine.stop_after = None
    before = len(engine.asked)
    code, document = carry_out(data)
    assert code == 0
    assert not done & {row for row, _ in engine.asked[before:]}
    assert (tmp_path / "out.jsonl").read_bytes() == straight
    assert document["rows_read"] == 20
    assert not (tmp_path / "out.jsonl.part").exists()


def test_rows_whose_answer_could_not_be_had_are_asked_for_again(engine, data, tmp_path, capsys):
    engine.broken = {2, 9}
    code, document = carry_out(data)
    assert code == 1
    assert [(row["line"], row["reason"]) for row in document["error_rows"]] == [(3, "gone"), (10, "gone")]
    assert not (tmp_path / "out.jsonl").exists()
    assert "line 3: gone" in capsys.readouterr().err
    engine.broken = set()
    engine.asked.clear()
    code, document = carry_out(data)
    assert (code, document["answered"]) == (0, 18)
    assert {row for row, _ in engine.asked} == {2, 9}


def test_other_options_or_data_never_mix_with_what_is_there(engine, data, tmp_path):
    engine.stop_after = 5
    carry_out(data)
    engine.stop_after = None
    with pytest.raises(RunError, match="answered otherwise") as caught:
        carry_out(data, temperature=0.5)
    assert caught.value.found == "other temperature"
    data.write_text(data.read_text() + "\n")
    with pytest.raises(RunError, match="answered otherwise") as caught:
        carry_out(data)
    assert caught.value.found == "other data"
    assert len((tmp_path / "out.jsonl.part").read_text().splitlines()) > 0


def test_a_finished_file_is_not_written_again(engine, data, tmp_path):
    _, first = carry_out(data)
    engine.asked.clear()
    code, again = carry_out(data)
    assert (code, engine.asked) == (0, [])
    assert again["answered"] == first["answered"]
    assert again["error_rows"] == first["error_rows"] == []
    assert again.keys() == first.keys()
    with pytest.raises(RunError, match="answers to something else") as caught:
        carry_out(data, seed=1)
    assert caught.value.found == "other seed"
    (tmp_path / "out.jsonl.manifest.json").unlink()
    with pytest.raises(RunError, match="there is a file already"):
        carry_out(data)


def test_answers_never_replace_their_prompts(engine, data):
    config = load_config(None, [f"data.path={data}"])
    with pytest.raises(RunError, match="replace their own prompts"):
        regenerate(config, RegenerationChoice(to=str(data)))


def test_answers_never_become_prompts_themselves(engine, data, tmp_path):
    folder = tmp_path / "prompts"
    folder.mkdir()
    data.rename(folder / "prompts.jsonl")
    (tmp_path / "link").symlink_to(folder)
    for given, to in ((folder, tmp_path / "link/out.jsonl"), (tmp_path / "link", folder / "out.jsonl")):
        config = load_config(None, [f"data.path={given}"])
        with pytest.raises(RunError, match="would become prompts"):
            regenerate(config, RegenerationChoice(to=str(to)))
    linked = load_config(None, [f"data.path={tmp_path / 'link/prompts.jsonl'}"])
    with pytest.raises(RunError, match="replace their own prompts"):
        regenerate(linked, RegenerationChoice(to=str(folder / "prompts.jsonl")))
    assert [file.name for file in folder.iterdir()] == ["prompts.jsonl"]
    assert regenerate(config, RegenerationChoice(to=str(tmp_path / "out.jsonl")))[0] == 0


def test_rows_past_the_limit_are_not_read(engine, data):
    _, document = carry_out(data, limit=3)
    assert (document["rows_read"], document["answered"]) == (3, 3)


def test_no_answer_at_all_is_an_error(engine, tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text("{\n[]\n")
    for _ in range(2):  # the second time it is finished
        with pytest.raises(DataError, match="0 answered of 2 rows") as caught:
            carry_out(path)
        assert caught.value.found == "1 × not JSON; 1 × not an object"
        assert caught.value.exit_code == 2
    assert (tmp_path / "out.jsonl").exists()


def test_rows_of_several_turns_are_finished_group_by_group(engine, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "talks_at_once", 3)
    path, talk = tmp_path / "prompts.jsonl", [{"role": "user", "content": "q"}]
    turns = [*talk, {"role": "assistant", "content": "a"}, *talk]
    path.write_text("".join(json.dumps({"messages": talk if i == 5 else turns}) + "\n" for i in range(8)))
    engine.stop_after = 1 + 6 + 3  # the row of one turn, all of a group, the first turns of the next
    assert carry_out(path)[1]["answered"] == 4
    engine.stop_after = None
    assert carry_out(path)[1]["answered"] == 8
    assert sorted(engine.asked)[:4] == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_a_bad_byte_costs_its_own_row_alone_and_is_told(engine, data, tmp_path, capsys):
    engine.stop_after = 20
    carry_out(data)
    part = tmp_path / "out.jsonl.part"
    lines = part.read_bytes().splitlines(keepends=True)
    part.write_bytes(b"".join([lines[0], b"\xff" + lines[1], *lines[2:]]))
    engine.stop_after = None
    engine.asked.clear()
    assert carry_out(data)[1]["answered"] == 18
    assert "1 lines are unreadable" in capsys.readouterr().err
    assert len({row for row, _ in engine.asked}) == 20 - len(lines) + 1


def test_strict_data_ends_at_the_first_row_that_is_not_usable(engine, data):
    config = load_config(None, [f"data.path={data}", "data.strict=true"])
    with pytest.raises(DataError, match="strict is set") as caught:
        regenerate(config, RegenerationChoice(to=str(data.parent / "out.jsonl")))
    assert "line 8: not JSON" in caught.value.found


def test_the_target_itself_answers_and_its_answers_train(tmp_path, monkeypatch, capsys):
    """Random weights write noise, but what is trained is to the token what was written, or is counted."""
    path = tmp_path / "prompts.jsonl"
    path.write_text(
        "".join(json.dumps({"messages": [{"role": "user", "content": "x" * i}]}) + "\n" for i in range(1, 7))
    )
    monkeypatch.setattr(transformers_engine, "tell_every_s", 0.0)
    code, document = carry_out(path, max_new_tokens=10, temperature=1.0, cut="keep")
    assert "8 of 10 tokens written, 6 answers of the batch go on" in capsys.readouterr().err
    assert code == 0
    assert document["answered"] + sum(document["refused"].values()) == 6
    manifest = json.loads((tmp_path / "out.jsonl.manifest.json").read_text())
    assert manifest["identity"]["target"]["target"] == "random:tiny"
    assert set(manifest["sessions"][0]["versions"]) == {"torch", "transformers"}
    again = tmp_path / "again.jsonl"
    config = load_config(None, [f"data.path={path}"])
    one_by_one = RegenerationChoice(
        to=str(again), max_new_tokens=10, temperature=1.0, cut="keep", batch_tokens=1
    )
    regenerate(config, one_by_one)
    assert len(again.read_text().splitlines()) == document["answered"]
