"""A source tree on PYTHONPATH that was never installed writes all that an installed one does."""

import json
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from dflash.checkpoints.manifest import read_manifest
from dflash.contract.versions import own_name, own_version
from dflash.drafter_files import open_drafter
from dflash.evaluation import outcome
from dflash.export import describe_export
from tests.small_checkpoints import write_steps

golden = Path(__file__).parents[2] / "data" / "golden"


@pytest.fixture
def bare(monkeypatch):
    """No distribution of ours."""
    installed = metadata.version

    def find(name):
        if name == "dflash-tune":
            raise metadata.PackageNotFoundError(name)
        return installed(name)

    monkeypatch.setattr(metadata, "version", find)


@pytest.mark.usefixtures("bare")
def test_what_is_not_installed_writes_checkpoints_exports_and_evaluations(tmp_path):
    assert (own_version(), own_name()) == (None, "dflash-tune")
    write_steps(tmp_path, 1, "data.path=a.jsonl")
    manifest = read_manifest(tmp_path / "step-1")
    assert json.loads((tmp_path / "step-1" / "state.json").read_text())["written_by"] == "dflash-tune"
    drafter = open_drafter(golden / "tiny_drafter")
    found = SimpleNamespace(path=tmp_path / "step-1", manifest=manifest)
    assert describe_export(found, drafter, tmp_path / "step-1")["written_by"] == "dflash-tune"
    assert outcome._versions()["dflash-tune"] is None


def test_what_is_installed_tells_its_version(monkeypatch):
    monkeypatch.setattr(metadata, "version", lambda name: {"dflash-tune": "1.2"}[name])
    assert (own_version(), own_name()) == ("1.2", "dflash-tune 1.2")
