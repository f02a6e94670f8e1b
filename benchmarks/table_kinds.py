"""For each kind of benchmark the head and the rows of its table, from its document.

A kind that is not in `kinds` is shown by `plain_rows`. Knows nothing of files or of how cells are written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from statistics import median
from typing import Any

from benchmarks.smollm2_table import smollm2_drafter
from benchmarks.story_cells import story_table
from benchmarks.table_cells import number, percent
from benchmarks.tuner_tables import tuner_contest

Document = dict[str, Any]
Table = tuple[list[str], list[list[Any]]]


def plain_rows(document: Document) -> Table:
    """The first list of rows with the values that fit into cells; without one, the values at the top."""
    for value in document.values():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            keys = [key for key in value[0] if all(_fits(row.get(key)) for row in value)]
            return [key.replace("_", " ") for key in keys], [[row.get(key) for key in keys] for row in value]
    told = ("benchmark", "command", "utc", "when", "gpus", "versions", "schema")
    return ["", "value"], [
        [key.replace("_", " "), value] for key, value in document.items() if key not in told and _fits(value)
    ]


def _fits(value: Any) -> bool:
    if isinstance(value, dict):
        return "median" in value
    if isinstance(value, list):
        whole = not any(isinstance(item, dict | list) for item in value)
        return len(value) <= 4 and whole and sum(len(str(item)) for item in value) <= 400
    return not isinstance(value, str) or len(value) <= 60


def drafter_step(document: Document) -> Table:
    """Our drafter step by case."""
    head = ["case", "step ms", "train ms", "complete ms", "context tokens/s", "TFLOP/s", "peak GB"]
    return head, [_step_cells(row["case"], row) for row in document["rows"]]


def target_forward(document: Document) -> Table:
    """Target forwards by case and contender."""
    head = [
        "shape",
        "case",
        "",
        "layers",
        "ms",
        "tokens/s",
        "times plain",
        "all layers: tokens/s",
        "GB beside weights",
    ]
    rows = [
        [
            row["shape"],
            row["case"],
            row["name"],
            row["layers"],
            row["forward_ms"],
            row["tokens_per_s"],
            row["times_as_fast"],
            row["whole_tokens_per_s"],
            row["peak_gb_beside_weights"],
        ]
        for row in document["rows"]
    ]
    skipped = document.get("skipped", {})
    return head, rows + [["", case, reason, *[None] * 6] for case, reason in skipped.items()]


def _step_cells(name: str, row: Document) -> list[Any]:
    keys = ("step_ms", "train_ms", "complete_ms", "context_tokens_per_s", "model_tflop_per_s", "peak_gb")
    return [name, *(row[key] for key in keys)]


def duel(document: Document) -> Table:
    """Two drafter steps by case, and whether they compute the same."""
    head = [
        "case",
        "trainer",
        "step ms",
        "context tokens/s",
        "TFLOP/s",
        "peak GB",
        "times as fast",
        "loss",
        "gradients: largest distance from float32",
        "same",
    ]
    rows = []
    for row in document["rows"]:
        agreement = row["agreement"]
        for side in ("ours", "theirs"):
            figures = row[side]
            rows.append(
                [
                    row["case"],
                    figures["name"],
                    figures["step_ms"],
                    figures["context_tokens_per_s"],
                    figures["model_tflop_per_s"],
                    figures["peak_gb"],
                    row["times_as_fast"] if side == "ours" else "1",
                    f"{agreement['loss'][side]:.5f}",
                    agreement["largest_distance"].get(side),
                    agreement["same"],
                ]
            )
    return head, rows


def pipeline(document: Document) -> Table:
    """Pipelines end to end."""
    head = [
        "setting",
        "pipeline",
        "tokens/s (90 % interval)",
        "times the fastest naive",
        "efficiency",
        "exposed copies",
        "peak GB",
        "RSS growth GB",
    ]
    naive: dict[str, float] = {}
    for row in document["rows"]:
        if row["name"].startswith("naive"):
            naive[row["setting"]] = max(row["tokens_per_s"], naive.get(row["setting"], 0.0))
    rows = []
    for row in document["rows"]:
        low, high = row["interval_90"]
        best = naive.get(row["setting"])
        rows.append(
            [
                row["setting"],
                row["name"],
                f"{number(row['tokens_per_s'])} ({number(low)} to {number(high)})",
                row["tokens_per_s"] / best if best else None,
                row.get("efficiency"),
                percent(row.get("exposed_copy_share"), 2),
                row["peak_gb"],
                row["rss_growth_gb"],
            ]
        )
    return head, rows


def transport(document: Document) -> Table:
    """Each path against the bare copy."""
    head = [
        "path",
        "hop",
        "MB an item",
        "GB/s",
        "bare copy GB/s",
        "share of the bare copy",
        "end to end GB/s",
    ]
    return head, [
        [
            row["path"],
            row["hop"],
            row["item_mb"],
            row["gb_per_s"],
            row["bare_gb_per_s"],
            percent(row["share_of_bare"]["median"]),
            row["end_to_end_gb_per_s"],
        ]
        for row in document["rows"]
    ]


def transport_presets(document: Document) -> Table:
    """Presets that trained the same windows."""
    head = ["preset", "tokens/s", "windows", "last loss", "weights as the first run's", "peak GB"]
    first = document["rows"][0]["weights_sha256"]
    return head, [
        [
            row["preset"],
            row["tokens_per_s"],
            row["windows_measured"],
            f"{row['losses'][-1]:.6f}",
            row["weights_sha256"] == first,
            row["peak_gb"],
        ]
        for row in document["rows"]
    ]


def gil_accuracy(document: Document) -> Table:
    """Sampled waits for the GIL against the truth."""
    head = ["case", "Python", "truth", "truth with CPU wait", "sampled", "worst off, points"]
    rows = []
    for row in document["results"]:
        threads = [[t[key] for t in row["threads"]] for key in ("truth", "truth_with_cpu_wait", "sampled")]
        rows.append([row["case"], row["python"], *threads, row["worst_off_points"]])
    return head, rows


def gpu_sensors(document: Document) -> Table:
    """Microseconds a reading; text where there is none."""
    head = ["reading", "µs", "largest µs", "CPU µs"]
    rows = []
    for name, cost in document["us_a_call"].items():
        cells = [cost["median"], cost["largest"], cost["cpu"]] if isinstance(cost, dict) else [cost, "", ""]
        rows.append([name, *cells])
    return head, rows


def idle_gaps(document: Document) -> Table:
    """Idle gaps found, by GPU."""
    head = ["GPU", "gaps", "timeline: recall", "precision", "power alone: recall", "precision"]
    rows = []
    for index, gpu in enumerate(document["found"].values()):
        found = (gpu["timeline"], gpu["power_alone_by_delay_s"]["0.0"])
        shares = [percent(way[key]) for way in found for key in ("recall", "precision")]
        rows.append([index, gpu["gaps"], *shares])
    return head, rows


def links(document: Document) -> Table:
    """Edges between devices and with the host."""
    head = ["from", "to", "path", "GB/s", "both ways GB/s", "all at once GB/s", "latency µs", "wrong words"]
    keys = ("src", "dst", "path", "gb_per_s", "both_ways_gb_per_s", "all_at_once_gb_per_s", "latency_us")
    return head, [[*(edge[key] for key in keys), edge["wrong_words"]] for edge in document["edges"]]


def demo_search(document: Document) -> Table:
    """Configurations of a search, best first."""
    head = ["trial", "runs", "tokens/s", "low", "high"]
    return head, [
        [row["trial"], row["runs"], *(row["tokens_per_s"][key] for key in ("mid", "low", "high"))]
        for row in document["standings"]
        if isinstance(row.get("tokens_per_s"), dict)
    ]


def profiler_overhead(document: Document) -> Table:
    """What was lost to recording, by kind of trainer, and what the recorder used."""
    head = [
        "trainer",
        "pairs",
        "throughput lost",
        "95 % bound",
        "95 % interval",
        "equal neighbours differ by",
        "recorder, of a core",
        "samples MB/h",
        "events MB/h",
        "events/s",
        "threads",
    ]
    rows: list[list[Any]] = []
    for kind, result in document["results"].items():
        lost, equal = result["lost"], result["equal_neighbours"] or {}
        spread = [percent(equal.get(key), 2) for key in ("mean", "standard_deviation")]
        interval = lost["interval_95"]
        rows.append(
            [
                kind,
                lost["count"],
                percent(lost["mean"], 2),
                percent(lost["upper_95_one_sided"], 2),
                None if interval is None else " to ".join(f"{100 * end:.2f} %" for end in interval),
                None if None in spread else " ± ".join(map(str, spread)),
                percent(result["recorder_cores"], 2),
                result["sample_bytes_per_hour"] / 1e6,
                result["event_bytes_per_hour"] / 1e6,
                result["events_per_s"],
                result["threads"],
            ]
        )
    return head, rows


def labelled_suite(document: Document) -> Table:
    """What was named first for each planted fault, then every miss with what was said of the true cause."""
    head = ["fault", "strength", "runs", "right", "throughput lost", "named first", "true cause, in misses"]
    rows: list[list[Any]] = []
    for case in document["confusion"]:
        named = ", ".join(f"{cause} {count}" for cause, count in case["named_first"].items())
        lost = percent(case["lost"])
        rows.append([*(case[key] for key in ("fault", "strength", "runs", "right")), lost, named, ""])
    for miss in document["misses"]:
        found = f"missed, seed {miss['seed']}: {miss['headline']}"
        rows.append(
            [miss["fault"], miss["strength"], 1, 0, percent(miss["lost"]), found, miss["said_of_truth"]]
        )
    for (fault, strength), tried in _grouped(document["regained"], "fault", "strength").items():
        knobs = ", ".join(f"`{each}`" for each in dict.fromkeys(remedy["knobs"] for remedy in tried))
        back = sorted(remedy["regained"] for remedy in tried)
        text = (
            f"remedy {knobs} regains {percent(back[0], 0)} or more, {percent(median(back), 0)} in the median"
        )
        lost = percent(median(remedy["lost"] for remedy in tried))
        enough = sum(share >= document["remedies"]["wanted_regain"] for share in back)
        rows.append([fault, strength, len(tried), enough, lost, text, ""])
    return head, rows


def _grouped(rows: Iterable[dict[str, Any]], *keys: str) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return groups


def planted_faults(document: Document) -> Table:
    """Faults planted in a trainer that is not ours, and what was said of them."""
    head = ["fault", "truth", "named first", "throughput lost to it", "named besides", "right"]
    rows = [
        [
            row["fault"],
            row["truth"],
            next(iter(row["named"]), "nothing"),
            percent(row["cost_share"], 0),
            ", ".join(row["named"][1:]) or None,
            "yes" if row["right"] else "no",
        ]
        for row in document["rows"]
    ]
    return head, rows


def whatif_accuracy(document: Document) -> Table:
    """Each family's errors, from its base and from every run; fixes of sick runs by what was put first."""
    head = [
        "runs",
        "forecasts",
        "median error",
        "90 % within",
        "largest",
        "noise of repeats",
        "in the interval",
    ]
    head += ["first-ranked is best, or equal"]
    rows: list[list[Any]] = []
    for name, part in document.items():
        if not isinstance(part, dict) or "first_ranked" not in part:
            continue
        ranked, many = part["first_ranked"], part["first_ranked"]["rankings"]
        first = f"{ranked['best_or_equal']} of {many}" if many else None
        if "from_the_base" not in part:
            rows.append([name, len(part["rows"]), *[None] * 5, first])
            continue
        for kind in ("from_the_base", "from_every_run"):
            if part[kind]["measured"]:
                told = f"{name}, {kind.replace('_', ' ')}"
                rows.append([told, *_errors(part[kind]), first if kind == "from_every_run" else None])
    return head, rows


def _errors(figures: Document) -> list[Any]:
    shares = (percent(figures[key]) for key in ("median_error", "p90_error", "largest_error", "repeat_noise"))
    return [figures["measured"], *shares, f"{figures['covered']} of {figures['measured']}"]


def whatif_on_gpus(document: Document) -> Table:
    """Each setting's forecast, made before it ran, beside what was measured."""
    head = [
        "setting",
        "forecast tokens/s",
        "90 % interval",
        "measured",
        "error",
        "in the interval",
        "would limit",
    ]
    rows = [
        [
            row["setting"],
            row["predicted"],
            f"{number(row['low'])} to {number(row['high'])}",
            row["measured"] or row["reason"],
            percent(row["error"]),
            row["covered"],
            row["limit"],
        ]
        for row in document["rows"]
    ]
    return head, rows


def knob_worth(document: Document) -> Table:
    """Agreement of what studies say of knobs with the truth, by kind of problem."""
    head = [
        "",
        "studies",
        "knobs changed",
        "of them known",
        "known, above 5 %",
        "verdicts judged",
        "right",
        "orders judged",
        "right",
        "true worth inside 90 %",
        "left out, inside 90 %",
    ]
    parts = {document["on"]: document, **(document.get("kinds") or {})}
    rows = [
        [
            name,
            part["studies"],
            part["knobs"],
            percent(part["known_share"]),
            percent(part["known_share_of_effects_above_5_percent"]),
            part["verdicts_judged"],
            percent(part["verdicts_right_share"]),
            part["orders_judged"],
            percent(part["orders_right_share"]),
            percent(part["inside_90_share"]),
            percent(part["left_out_inside_90_share"]),
        ]
        for name, part in parts.items()
    ]
    return head, rows


kinds: dict[str, Callable[[Document], Table]] = {
    "drafter_step": drafter_step,
    "target_forward": target_forward,
    "against_specforge": duel,
    "against_speculators": duel,
    "pipeline": pipeline,
    "transport": transport,
    "transport_presets": transport_presets,
    "gil_accuracy": gil_accuracy,
    "gpu_sensors": gpu_sensors,
    "idle_gaps": idle_gaps,
    "profiler_overhead": profiler_overhead,
    "links": links,
    "demo_search": demo_search,
    "planted_faults": planted_faults,
    "labelled_suite": labelled_suite,
    "whatif_accuracy": whatif_accuracy,
    "whatif_on_gpus": whatif_on_gpus,
    "tuner_contest": tuner_contest,
    "story_table": story_table,
    "knob_worth": knob_worth,
    "smollm2_drafter": smollm2_drafter,
}
