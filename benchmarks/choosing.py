"""Every method on every embedded data set, by `pl.compare`, as the tables of docs/choosing.md.

    python benchmarks/choosing.py                     # all sets, five seeds: results/choosing.json, and the page
    python benchmarks/choosing.py --quick             # does everything work? one seed, few epochs, nothing is written
    python benchmarks/choosing.py --data moons,wine --seeds 2
    python benchmarks/choosing.py --render            # the page again, from the results that are there

Sets are stored as they finish, so that a run can be stopped and gone on with: `--data` of the others adds to the file if the
commit and the number of seeds are the same.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import re
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "choosing.json"
PAGE = ROOT / "docs" / "choosing.md"
BEGIN, END = "<!-- tables: benchmarks/choosing.py -->", "<!-- end of the tables -->"

DATA = ("moons", "circles", "digits", "diabetes", "breast-cancer", "wine")
# Beside those that `plausible compare` takes when nobody names any.
MORE = (
    "advi", "bayes-by-backprop", "mc-dropout", "concrete-dropout", "vogn", "ogn", "ivon", "kfac", "noisy-kfac", "sghmc",
    "cyclical-sgmcmc",
)  # fmt: skip
QUICK_EPOCHS = 8
SCORE = "nll"  # what methods are ranked by; classes and numbers both have it
NEAR = 2.0  # standard errors of a difference that is no difference
HIDDEN = ("milliseconds",)  # too small to time beside other work

Results = Mapping[str, Any]


# --- the runs ---


def study(name: str, methods: Sequence[str] | None, seeds: int, epochs: int | None) -> dict[str, Any]:
    """One data set: every score of every run."""
    import plausible as pl

    parts = [pl.compare(name, own, seeds=seeds, epochs=epochs) for own in ([methods] if methods else [None, MORE])]
    for found in parts:
        print(found, flush=True)
    first = parts[0]
    return {
        "title": first.title,
        "outliers": first.outliers_are,
        "notes": list(first.notes),
        "columns": {key: [column.heading, column.form, column.better] for key, column in first.columns.items()},
        "runs": {method: list(runs) for found in parts for method, runs in found.runs.items()},
    }


def header(arguments: Sequence[str], seeds: int) -> dict[str, Any]:
    import torch

    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT)
    changed = subprocess.run(["git", "diff", "--quiet", "HEAD", "--", "src"], cwd=ROOT).returncode != 0
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()
    return {
        "command": " ".join(["python benchmarks/choosing.py", *arguments]),
        "commit": commit.stdout.strip() + (" and changes" if changed else ""),
        "device": f"{device}, {torch.get_num_threads()} threads",
        "torch": torch.__version__,
        "seeds": seeds,
    }


# --- the page ---


def render(results: Results) -> str:
    """The tables, as Markdown between the page's two marks."""
    parts = [_summary(results), *(_table(name, part) for name, part in results["data"].items())]
    origin = (
        f"{_counted(len(results['data']), 'data set')}, {_counted(results['seeds'], 'seed')}, commit {results['commit']}, "
        f"torch {results['torch']} on {results['device']}: `{results['command']}`"
    )
    return "\n\n".join([f"Measured: {origin}.", *parts])


def _summary(results: Results) -> str:
    sets = results["data"]
    methods = list(dict.fromkeys(method for part in sets.values() for method in part["runs"]))
    lines = ["| method | mean rank | at or near the best | fit time, MAP = 1 |", "|---|---:|---|---:|"]
    rows: list[tuple[float, str]] = []
    for method in methods:
        joined = {name: part for name, part in sets.items() if method in part["runs"]}
        rank = statistics.mean(_rank(part, method) for part in joined.values())
        near = [name for name, part in joined.items() if _near_best(part, method)]
        cost = statistics.median(_cost(part, method) for part in joined.values())
        count = "" if len(joined) == len(sets) else f" on {len(joined)}"
        rows.append(
            (rank, f"| `{method}` | {rank:.1f}{count} | {', '.join(near) or 'nowhere'} | {_written(cost, '.1f')} |")
        )
    return "\n".join([*lines, *(line for _, line in sorted(rows, key=lambda row: row[0]))])


def _table(name: str, part: Mapping[str, Any]) -> str:
    columns = {key: column for key, column in part["columns"].items() if key not in HIDDEN}
    lines = [
        f"### {name}",
        "",
        f"{part['title']}." + (f" OOD: {part['outliers']}." if part["outliers"] else ""),
        "",
        "| method | " + " | ".join(heading for heading, _, _ in columns.values()) + " |",
        "|---|" + "---:|" * len(columns),
    ]
    for method in part["runs"]:
        cells = [_cell(part, method, key, *column[1:]) for key, column in columns.items()]
        lines.append(f"| `{method}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(part: Mapping[str, Any], method: str, key: str, form: str, better: str | None) -> str:
    mean, error = _mean(part, method, key), _error(part, method, key)
    text = _written(mean, form)
    if better and text == _written(_best(part, key, better), form):
        text = f"**{text}**"
    rounded = ".2g" if form.endswith("g") else form  # of an error two digits say enough
    return text if math.isnan(error) or math.isnan(mean) else f"{text} ± {_written(error, rounded)}"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


def _written(value: float, form: str) -> str:
    return "–" if math.isnan(value) else format(value, form)


def _mean(part: Mapping[str, Any], method: str, key: str) -> float:
    return statistics.mean(run[key] for run in part["runs"][method])


def _error(part: Mapping[str, Any], method: str, key: str) -> float:
    values = [run[key] for run in part["runs"][method]]
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan


def _best(part: Mapping[str, Any], key: str, better: str) -> float:
    means = [_mean(part, method, key) for method in part["runs"]]
    return max(means) if better == "high" else min(means)


def _rank(part: Mapping[str, Any], method: str) -> int:
    return 1 + sum(_mean(part, other, SCORE) < _mean(part, method, SCORE) for other in part["runs"])


def _cost(part: Mapping[str, Any], method: str) -> float:
    return _mean(part, method, "seconds") / _mean(part, "map", "seconds") if "map" in part["runs"] else math.nan


def _near_best(part: Mapping[str, Any], method: str) -> bool:
    """Whether the best is no better than chance makes it; with one seed, whether it is the best."""
    best = min(part["runs"], key=lambda other: _mean(part, other, SCORE))
    if method == best:
        return True
    error = math.hypot(_error(part, method, SCORE), _error(part, best, SCORE))
    return _mean(part, method, SCORE) - _mean(part, best, SCORE) < NEAR * error  # NaN: no


def with_tables(page: str, results: Results) -> str:
    """The page with the tables between its marks."""
    place = re.compile(f"(?<={re.escape(BEGIN)}\n).*?(?={re.escape(END)})", re.DOTALL)
    if not place.search(page):
        raise ValueError(f"the page must have the lines {BEGIN!r} and {END!r}")
    return place.sub(lambda _: f"\n{render(results)}\n\n", page, count=1)


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=",".join(DATA), help="separated by commas")
    parser.add_argument("--methods", help="separated by commas; by default what `plausible compare` takes, and MORE")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one seed, few epochs, nothing is written")
    parser.add_argument("--render", action="store_true", help="run nothing, write the page")
    options = parser.parse_args(arguments)
    if options.render:
        PAGE.write_text(with_tables(PAGE.read_text(), json.loads(RESULTS.read_text())))
        return
    seeds, epochs = (1, QUICK_EPOCHS) if options.quick else (options.seeds, None)
    methods = options.methods.split(",") if options.methods else None
    results = {**header(arguments, seeds), "data": {}}
    if RESULTS.exists():
        before = json.loads(RESULTS.read_text())
        if all(before[key] == results[key] for key in ("commit", "seeds", "torch", "device")) and not options.quick:
            results["data"] = before["data"]
            results["command"] = f"{before['command']}; {results['command']}"
    for name in options.data.split(","):
        results["data"][name] = study(name, methods, seeds, epochs)
        if not options.quick:
            RESULTS.write_text(json.dumps(results, indent=1) + "\n")
            PAGE.write_text(with_tables(PAGE.read_text(), results))
    if options.quick:
        print(render(results))


if __name__ == "__main__":
    main(sys.argv[1:])
