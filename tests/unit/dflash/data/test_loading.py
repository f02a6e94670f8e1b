"""What is kept and found again, and everything that must not be taken for the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from dflash.contract.config import TrainConfig, load_config
from dflash.contract.errors import ConfigError, DataError
from dflash.data import loading
from dflash.data.documents import Documents
from dflash.data.loading import load_documents, not_of_tokens
from dflash.data.tokenizer import ChatTokenizer, SpecialIds

cases = Path(__file__).parents[3] / "data/cases/data"
template_text = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"


def make_tokenizer(text: str = template_text, *, add: str = "") -> ChatTokenizer:
    def apply(messages, prompt, tools=()):
        return "".join(f"<|{m['role']}|>{m['content']}<|end|>" for m in messages)

    backend = Tokenizer.from_file(str(cases / "tiny_bpe_tokenizer/tokenizer.json"))
    if add:
        backend.add_tokens([add])
    special = SpecialIds(mask=None, pad=0, eos=1, unk=None)
    return ChatTokenizer("tiny", backend, apply, special, template_text=text)


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    write(path, "a first answer, and a long one at that", "", "the second answer")
    return path


def write(path: Path, *answers: str) -> None:
    with path.open("w") as file:
        for number, answer in enumerate(answers):
            turns = [{"role": "user", "content": "q"}, {"role": "assistant", "content": answer}]
            file.write(json.dumps({"id": f"row-{number}", "messages": turns}) + "\n")


class Loads:
    """Loads again and again with one cache; `last`: what was told of the last time."""

    def __init__(self, path: Path, cache: Path) -> None:
        self.path, self.cache, self.last = path, cache, list[str]()

    def config(self, **knobs: object) -> TrainConfig:
        chosen = {"data.path": str(self.path), "data.cache": str(self.cache), "data.max_length": 64}
        return load_config(None).replacing({**chosen, **knobs})

    def load(self, tokenizer: ChatTokenizer | None = None, **knobs: object) -> Documents:
        self.last = []
        return load_documents(self.config(**knobs), tokenizer or make_tokenizer(), self.last.append)

    @property
    def was_cached(self) -> bool:
        (cached,) = [line.startswith("tokens: cached, key ") for line in self.last[:1]]
        assert cached == (len(self.last) == 1)
        return cached

    def files(self) -> dict[str, Path]:
        return {path.name: path for path in self.cache.glob("tokens/*/*")}


@pytest.fixture
def loads(rows: Path, tmp_path: Path) -> Loads:
    return Loads(rows, tmp_path / "cache")


def everything(documents: Documents) -> object:
    items = [(d.file, d.line, d.ids.tolist(), d.loss_mask.tolist()) for d in documents.items]
    books = documents.books
    counted = (
        books.rows_read,
        books.rows_usable,
        books.warnings,
        books.supervised_share,
        books.distinct_texts,
    )
    return items, documents.identity, counted, list(books.refused)


def test_an_unchanged_rerun_is_cached_and_says_what_its_key_is_made_of(loads: Loads) -> None:
    first = loads.load()
    assert not loads.was_cached
    again = loads.load()
    assert loads.was_cached
    assert everything(again) == everything(first)
    assert [(row.line, row.reason) for row in again.books.refused] == [(2, "empty answer: message 2")]
    for part in ("rows ", "tokenizer ", "template ", "data.max_length 64", "data.too_long cut", "format 1",
                 "data.turns all", "drafter.block_size 8", "dflash-tune 0.1.0"):  # fmt: skip
        assert part in loads.last[0]


@pytest.mark.parametrize(
    "knobs",
    [
        {"data.max_length": 40},
        {"data.too_long": "refuse"},
        {"data.turns": "last"},
        {"data.thinking": "off"},
        {"drafter.block_size": 4},
    ],
)
def test_another_option_makes_tokens_anew(loads: Loads, knobs: dict[str, object]) -> None:
    """Case C012."""
    loads.load()
    loads.load(**knobs)
    assert not loads.was_cached
    loads.load(**knobs)
    assert loads.was_cached
    loads.load()
    assert loads.was_cached


def test_another_template_or_tokenizer_of_the_same_name_makes_tokens_anew(loads: Loads) -> None:
    """Case C012."""
    loads.load()
    loads.load(make_tokenizer(template_text + " "))
    assert not loads.was_cached
    loads.load(make_tokenizer(add="answer"))
    assert not loads.was_cached
    loads.load()
    assert loads.was_cached


def test_other_bytes_of_the_same_size_and_time_make_tokens_anew(loads: Loads) -> None:
    """Case C012."""
    before = loads.path.stat()
    one = loads.load()
    loads.path.write_bytes(loads.path.read_bytes().replace(b"second", b"third!"))
    os.utime(loads.path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert loads.path.stat().st_size == before.st_size
    assert loads.path.stat().st_mtime_ns == before.st_mtime_ns
    other = loads.load()
    assert not loads.was_cached
    assert other.identity != one.identity


def test_another_version_makes_tokens_anew(loads: Loads, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case C012: of the product, of a library, of the code itself."""
    loads.load()
    version = loading._version
    for package in ("dflash-tune", "tokenizers", "transformers"):
        monkeypatch.setattr(
            loading, "_version", lambda name, new=package: "9" if name == new else version(name)
        )
        loads.load()
        assert not loads.was_cached
    monkeypatch.setattr(loading, "_version", version)
    monkeypatch.setattr(loading, "_code_sha256", lambda: "f" * 64)
    loads.load()
    assert not loads.was_cached
    monkeypatch.undo()
    loads.load()
    assert loads.was_cached


def test_what_does_not_touch_tokens_is_no_part_of_the_key(loads: Loads) -> None:
    loads.load()
    loads.load(**{"data.seed": 3, "data.workers": 0, "data.row_seconds": 5.0, "run.epochs": 9})
    assert loads.was_cached
    knobs = {path.removeprefix("data.") for path in loads.config().values() if path.startswith("data.")}
    assert not_of_tokens <= knobs  # every name is one


def test_a_file_may_move_and_is_called_what_it_is_called_now(loads: Loads) -> None:
    loads.load()
    loads.path = loads.path.rename(loads.path.with_name("moved.jsonl"))
    documents = loads.load()
    assert loads.was_cached
    assert documents.items[0].file == documents.books.refused[0].file == str(loads.path)


def test_a_name_that_says_how_a_file_is_read_makes_tokens_anew(loads: Loads) -> None:
    turns = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "an answer"}]
    loads.path.write_text(json.dumps([{"messages": turns}]) + "\n")
    with pytest.raises(DataError, match="not an object"):
        loads.load()
    write(loads.path, "one", "two")
    loads.path.write_text("[]\n" + loads.path.read_text())
    assert loads.load().books.rows_usable == 2  # a line a row, one of which is none
    loads.path = loads.path.rename(loads.path.with_name("rows.json"))
    with pytest.raises(DataError, match="after the end of the array"):
        loads.load()
    loads.path = loads.path.rename(loads.path.with_name("rows.ndjson"))
    loads.load()
    assert loads.was_cached


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def dangle(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.with_name("gone"))


@pytest.mark.parametrize("damage", [flip, cut_off, Path.unlink, dangle])
@pytest.mark.parametrize("file", ["documents.arrow", "refused.arrow", "entry.json"])
def test_damaged_tokens_are_told_in_a_line_and_made_again(loads: Loads, damage, file: str) -> None:
    """Cases C014 and C018: what is kept is verified before it is believed."""
    first = everything(loads.load())
    damage(loads.files()[file])
    assert everything(loads.load()) == first
    assert loads.last[0].startswith(f"tokens: the entry in the cache is damaged ({file}: ")
    assert everything(loads.load()) == first
    assert loads.was_cached


def test_all_data_files_are_links_to_nothing(loads: Loads, tmp_path: Path) -> None:
    """Case C018: refused before anything is trained, cached or not."""
    folder = tmp_path / "shards"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.jsonl").write_bytes(loads.path.read_bytes())
    loads.path = folder
    assert loads.load().books.rows_read == 9
    for file in folder.iterdir():
        dangle(file)
    with pytest.raises(DataError, match="none of the 3 data files can be read") as caught:
        loads.load()
    assert caught.value.found
    assert caught.value.expected


loading_process = """
import sys
from pathlib import Path
from tests.unit.dflash.data.test_loading import Loads
documents = Loads(Path(sys.argv[1]), Path(sys.argv[2])).load()
print(documents.identity, len(documents.books.refused))
"""


def test_two_first_runs_at_once_do_not_see_each_others_halves(loads: Loads, repository: Path) -> None:
    """Case C014."""
    write(loads.path, *(f"an answer of number {number}" for number in range(2000)), "")
    command = [sys.executable, "-c", loading_process, str(loads.path), str(loads.cache)]
    pair = [subprocess.Popen(command, cwd=repository, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = {process.communicate(timeout=120)[0] for process in pair}
    documents = loads.load()
    assert loads.was_cached
    assert said == {f"{documents.identity} 1\n"}


def test_a_strict_run_refuses_what_is_kept_of_a_lenient_one(loads: Loads) -> None:
    loads.load()
    with pytest.raises(DataError, match="empty answer") as caught:
        loads.load(**{"data.strict": True})
    assert caught.value.where == f"{loads.path}, line 2 (row-1)"


def test_off_keeps_nothing(loads: Loads) -> None:
    kept = everything(loads.load())
    there = sorted(loads.files())
    loads.cache = loads.cache.with_name("another")
    assert everything(loads.load(**{"data.cache": "off"})) == kept
    assert loads.last == []
    assert not loads.cache.exists()
    assert len(there) == 3


def test_nothing_is_kept_of_a_template_that_nobody_can_compare(loads: Loads) -> None:
    loads.load(make_tokenizer(""))
    assert loads.last == ["tokens: not kept, since nobody knows what the chat template of tiny is made of"]
    assert not loads.files()


def test_a_cache_that_cannot_be_used_is_refused_when_named_and_told_when_not(loads, monkeypatch) -> None:
    loads.cache.write_text("a file")
    with pytest.raises(ConfigError, match="cannot be kept there"):
        loads.load()
    monkeypatch.setenv("XDG_CACHE_HOME", str(loads.cache))
    assert loads.load(**{"data.cache": "auto"}).books.rows_usable == 2
    (line,) = loads.last
    assert line.startswith(f"tokens: not kept: {loads.cache}/dflash-tune: ")


def test_a_file_that_changes_while_it_is_read_is_an_error_and_not_kept(loads, monkeypatch) -> None:
    read = loading.read_raw

    def read_and_write(path):
        yield from read(path)
        write(path, "another answer")

    monkeypatch.setattr(loading, "read_raw", read_and_write)
    with pytest.raises(DataError, match="changed while they were read"):
        loads.load()
    assert not loads.files()


def test_a_file_that_comes_or_goes_while_rows_are_read_is_an_error_and_not_kept(loads, monkeypatch) -> None:
    folder = loads.path.parent / "many"
    folder.mkdir()
    write(folder / "a.jsonl", "an answer")
    write(folder / "c.jsonl", "the last answer")
    loads.path, read = folder, loading.read_raw

    def read_after(change):
        def reading(path):
            change()
            yield from list(read(path))

        return reading

    for change in (lambda: write(folder / "b.jsonl", "a late one"), (folder / "b.jsonl").unlink):
        monkeypatch.setattr(loading, "read_raw", read_after(change))
        with pytest.raises(DataError, match="changed while they were read"):
            loads.load()
        assert not loads.files()
    monkeypatch.setattr(loading, "read_raw", read)
    assert loads.load().books.rows_usable == 2


def test_rows_without_end_do_not_gather_in_memory(loads: Loads) -> None:
    """Refusals too are read from the disk, one at a time."""
    write(loads.path, *["", "an answer"] * 400)
    books = loads.load().books
    assert (books.rows_read, books.rows_usable, len(books.refused)) == (800, 400, 400)
    assert [row.line for row in books.refused[::100]] == [1, 201, 401, 601]
    assert books.refused[-1].line == 799
    assert not isinstance(books.refused, tuple | list)
