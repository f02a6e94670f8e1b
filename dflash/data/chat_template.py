"""Chat templates as functions from messages to text: the embedded ChatML, and those of pretrained tokenizers.

A template may read options that are not messages. Thinking is one; the date is another: where a template
writes today's date, it is given a fixed one, so that texts do not differ from day to day. Knows nothing of
tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from jinja2 import TemplateError

from dflash.contract.errors import ConfigError
from dflash.data.chat_turns import Message, Template, Tool
from dflash.data.tool_calls import Arguments

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

thinking_switches: Final = ("enable_thinking", "thinking")  # what templates call it
fixed_date: Final = "26 Jul 2024"  # what Llama's templates fall back to


def apply_chatml(messages: Sequence[Message], prompt: bool, tools: Sequence[Tool] = (), /) -> str:
    """The embedded template: ChatML with tools and calls as JSON."""
    given = "".join(f"{json.dumps(tool, ensure_ascii=False)}\n" for tool in tools)
    head = f"<|im_start|>system\nTools:\n{given}<|im_end|>\n" if tools else ""
    turns = [
        f"<|im_start|>{m['role']}\n{_thinking(m)}{m['content']}{_calls(m)}<|im_end|>\n" for m in messages
    ]
    return head + "".join(turns) + "<|im_start|>assistant\n" * prompt


def _thinking(message: Message) -> str:
    thinking = message.get("reasoning_content")
    return f"<think>\n{thinking}\n</think>\n\n" if thinking else ""


def _calls(message: Message) -> str:
    calls = (json.dumps(call, ensure_ascii=False) for call in message.get("tool_calls", ()))
    return "".join(f"\n<tool_call>\n{call}\n</tool_call>" for call in calls)


class PretrainedTemplate(Template):
    """The chat template of a pretrained tokenizer, with its options. Raises what Jinja raises."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, thinking: str) -> None:
        """`thinking`: template, on or off. Raises ConfigError when the template has no such switch.

        `text` is the template's; `identity`: that with the special tokens that it writes by their role.
        """
        self._tokenizer = tokenizer
        self.text = template_text(tokenizer)
        self.identity = _with_specials(self.text, tokenizer.special_tokens_map)
        self._options: dict[str, Any] = {}
        if thinking != "template":
            self._options = {self._find_switch(): thinking == "on"}
        if _reads(self.text, "strftime_now") and _reads(self.text, "date_string"):
            self._options["date_string"] = fixed_date
        self._calls_as_text = False
        self._calls_as_text = self._wants_text()

    def __call__(self, messages: Sequence[Message], prompt: bool, tools: Sequence[Tool] = (), /) -> str:
        return str(
            self._tokenizer.apply_chat_template(
                [self._prepare(message) for message in messages],
                tools=[dict(tool) for tool in tools] or None,
                tokenize=False,
                add_generation_prompt=prompt,
                **self._options,
            )
        )

    def _find_switch(self) -> str:
        found = [name for name in thinking_switches if _reads(self.text, name)]
        if not found:
            raise ConfigError(
                "the chat template has no switch for thinking",
                where="data.thinking",
                found="a template that reads neither " + " nor ".join(thinking_switches),
                remedy='leave data.thinking at "template"',
            )
        return found[0]

    def _prepare(self, message: Message) -> dict[str, Any]:
        if self._calls_as_text and "tool_calls" in message:
            return {**message, "tool_calls": [_write_arguments(call) for call in message["tool_calls"]]}
        return dict(message)

    def _wants_text(self) -> bool:
        """Whether a template joins the arguments of a call to its text as they are: text is wanted then."""
        if "arguments" not in self.text:
            return False
        function = {"name": "f", "arguments": Arguments({"key": "word"})}
        call = {"type": "function", "id": "call00001", "function": function}
        calling = {"role": "assistant", "content": "", "tool_calls": [call]}
        written = self._try([{"role": "user", "content": "q"}, calling])
        if written is not None and "{'key': 'word'}" not in written:
            return False
        self._calls_as_text = True
        written = self._try([{"role": "user", "content": "q"}, calling])
        return written is not None and '{"key": "word"}' in written

    def _try(self, messages: Sequence[Message]) -> str | None:
        try:
            return self(messages, False)
        except (TemplateError, TypeError, ValueError, LookupError, AttributeError):
            return None


def template_text(tokenizer: PreTrainedTokenizerBase) -> str:
    """Every chat template that a tokenizer has, as one text."""
    template: Any = tokenizer.chat_template
    return template if isinstance(template, str) else json.dumps(template, sort_keys=True)


def _with_specials(text: str, specials: Mapping[str, Any]) -> str:
    """The text of a template, and which tokens it means by `bos_token` and the like, where it reads any."""
    read = {name: str(token) for name, token in specials.items() if _reads(text, name)}
    return text + "\n" + json.dumps(read, sort_keys=True) if read else text


def _write_arguments(call: Any) -> Any:
    inner = call.get("function", call)
    if not isinstance(inner.get("arguments"), Arguments):
        return call
    written = {**inner, "arguments": inner["arguments"].text}
    return {**call, "function": written} if "function" in call else written


def _reads(text: str, name: str) -> bool:
    return re.search(rf"\b{name}\b", text) is not None
