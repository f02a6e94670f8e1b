"""The examples of docs/search.md do what they say."""

import re


def test_the_pages_examples_run_and_print_what_they_say(repository, capsys):
    page = (repository / "docs/search.md").read_text(encoding="utf-8")
    examples = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(examples) == 2
    names = {}
    for example in examples:
        exec(compile(example, "docs/search.md", "exec"), names)
        (promised,) = re.findall(r"print\(.*# (\{.*\})", example)
        assert capsys.readouterr().out.strip() == promised
