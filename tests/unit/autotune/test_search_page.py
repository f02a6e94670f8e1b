"""The example of docs/search.md does what it says."""

import re


def test_the_pages_example_runs_and_prints_what_it_says(repository, capsys):
    page = (repository / "docs/search.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(compile(example, "docs/search.md", "exec"), {})
    (promised,) = re.findall(r"# (\{.*\})", example)
    assert capsys.readouterr().out.strip() == promised
