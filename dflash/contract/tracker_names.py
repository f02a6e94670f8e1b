"""The trackers there are, and the names in `run.trackers`. Knows nothing of how they are fed."""

from __future__ import annotations

from dflash.contract.errors import ConfigError, nearest

known_trackers = ("tensorboard", "wandb", "trackio")


def parse_trackers(text: str) -> tuple[str, ...]:
    """The names in `text`, comma-separated, each once and in order. Raises ConfigError for an unknown one."""
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    for name in names:
        if name not in known_trackers:
            near = nearest(name, known_trackers)
            raise ConfigError(
                "there is no such tracker",
                where="run.trackers",
                found=name,
                expected=", ".join(known_trackers),
                remedy=f"did you mean {near!r}?" if near else None,
            )
    return names
