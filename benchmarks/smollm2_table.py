"""The table of a drafter for SmolLM2: what it had learned when, and what it is worth at the end."""

from __future__ import annotations

from typing import Any

from benchmarks.table_cells import number


def smollm2_drafter(document: dict[str, Any]) -> tuple[list[str], list[list[Any]]]:
    """A row for each evaluation on the way, with the training loss by then; then answers, and the wheel."""
    head = ["after step", "on", "loss in training", "loss", "accuracy", "acceptance length"]
    rows: list[list[Any]] = []
    for found in document.get("held_out_curve") or []:
        loss = [point["loss"] for point in document["curve"] if point["step"] <= found["step"]]
        told = [loss[-1] if loss else None, found["loss"], found["accuracy"], found["acceptance_length"]]
        rows.append([found["step"], f"{found['documents']} held-out answers", *told])
    last = rows[-1][0] if rows else None
    if evaluation := document.get("evaluation"):
        acceptance = evaluation["acceptance"]
        low, high = acceptance["pooled_interval"] or (None, None)
        told = "" if low is None else f" ({number(low)} to {number(high)}, 95 %)"
        on = f"`evaluate`: answers of {acceptance['answers']} held-out prompts"
        rows.append([last, on, None, None, None, f"{number(acceptance['pooled'])}{told}"])
    if wheel := document.get("wheel"):
        same = f"lengths equal for {wheel['same_lengths']}, text for {wheel['same_text_as_greedy']}"
        on = f"decoded by z-lab's wheel: {wheel['prompts']} of these prompts; {same}"
        rows.append([last, on, None, None, None, wheel["pooled_wheel"]])
    return head, rows
