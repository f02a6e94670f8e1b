"""What `dflash-train regenerate` is asked for: which rows, which engine, how answers are drawn.

Checked when it is made, in the command and in the process that carries it out. Knows nothing of engines.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any, Final

from dflash.contract.errors import UsageError

engines: Final = ("transformers", "openai")
cut_rules: Final = ("refuse", "keep")


@dataclass(frozen=True, slots=True, kw_only=True)
class RegenerationChoice:
    """Everything that the command line says. Raises UsageError for what does not go together."""

    to: str  # the JSONL file to be written
    engine: str = "transformers"
    url: str = ""  # of an OpenAI-compatible endpoint, up to and with /v1
    model: str = ""  # its name there
    key_variable: str = "OPENAI_API_KEY"  # environment variable with the key, if it needs one
    concurrency: int = 32  # requests at once
    max_new_tokens: int = 1024  # of an answer, at most
    temperature: float = 0.0  # 0: greedy
    top_p: float = 1.0
    seed: int = 0
    cut: str = "refuse"  # what becomes of an answer that max_new_tokens cut off
    batch_tokens: int = 0  # rows × (prompt + answer) at once; 0: what fits
    limit: int = 0  # rows of the file, from its beginning; 0: all

    def __post_init__(self) -> None:
        checks = (
            (self.engine in engines, "--engine", self.engine, "one of " + ", ".join(engines)),
            (self.cut in cut_rules, "--cut", self.cut, "one of " + ", ".join(cut_rules)),
            (self.concurrency >= 1, "--concurrency", self.concurrency, "at least 1"),
            (self.max_new_tokens >= 1, "--max-new-tokens", self.max_new_tokens, "at least 1"),
            (0 <= self.temperature <= 10, "--temperature", self.temperature, "0 (greedy) to 10"),
            (0 < self.top_p <= 1, "--top-p", self.top_p, "above 0, at most 1"),
            (self.seed >= 0, "--seed", self.seed, "0 or more"),
            (self.batch_tokens >= 0, "--batch-tokens", self.batch_tokens, "0 (what fits) or more"),
            (self.limit >= 0, "--limit", self.limit, "0 (all) or more"),
            (bool(self.to), "--to", repr(self.to), "the JSONL file to write"),
        )
        for good, flag, found, expected in checks:
            if not good:
                raise UsageError("an option is out of range", where=flag, found=found, expected=expected)
        remote = self.engine == "openai"
        for flag, value in (("--url", self.url), ("--model", self.model)):
            if remote != bool(value):
                raise UsageError(
                    f"--engine openai needs {flag}" if remote else f"{flag} is for --engine openai",
                    where=flag,
                    found=value or "nothing",
                )
        if remote and not self.url.startswith(("http://", "https://")):
            raise UsageError(
                "this is no address of an endpoint",
                where="--url",
                found=self.url,
                expected="http://HOST:PORT/v1",
            )

    def identity(self) -> dict[str, Any]:
        """What the answers follow from, beside prompts and target: where it changes, so do they."""
        chosen = dataclasses.asdict(self)
        free = ("to", "key_variable", "concurrency", "batch_tokens")
        return {key: value for key, value in chosen.items() if key not in free}

    def to_json(self) -> str:
        """For the process that carries it out."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> RegenerationChoice:
        """The inverse of `to_json`."""
        return cls(**json.loads(text))
