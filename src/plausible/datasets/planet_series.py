"""Orbital elements of planetary systems over their first orbits, integrated in parallel and kept on disk."""

from __future__ import annotations

import hashlib
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from plausible.datasets.locations import cache_folder
from plausible.datasets.npz import read_npz
from plausible.datasets.planet_integration import CHANNELS, STEP, Track, integrate
from plausible.datasets.planet_systems import ELEMENTS, PlanetSystems

_FORMAT = 1
_CHUNK = 50  # systems a file: what an interruption costs at most
_AXIS = ELEMENTS.index("semimajor_axis")


class _Stopped(Exception):
    """A chunk was given up because another one failed."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class PlanetSeries:
    """What N systems of P planets did.

    Attributes:
        values: (N, steps, 6 P), float32: the channels of `planet_integration.CHANNELS` of each planet, the innermost first;
            semimajor axes in units of the innermost planet's at the start. After a meeting, the elements seen last.
        masses: (N, P), float64, in units of the star's.
        met: (N,), float64: orbits of the innermost planet until two planets met, infinite where none did.
    """

    values: Tensor
    masses: Tensor
    met: Tensor

    def __len__(self) -> int:
        return len(self.met)

    def __repr__(self) -> str:
        merged = int(self.met.isfinite().sum())
        return f"PlanetSeries({len(self)} systems, {self.values.shape[1]} steps, {merged} met)"

    def take(self, rows: Tensor) -> PlanetSeries:
        """The series of these row numbers, in this order."""
        return PlanetSeries(values=self.values[rows], masses=self.masses[rows], met=self.met[rows])


def planet_series(
    systems: PlanetSystems,
    *,
    orbits: float = 1e4,
    steps: int = 100,
    cache: str | Path | None = None,
    workers: int | None = None,
    progress: bool = True,
) -> PlanetSeries:
    """Integrate systems for a while; about a quarter of a second a processor for 10⁴ orbits of three planets.

    Whatever has been integrated before is read from the cache. It is written in small files as soon as they are done, each
    whole or not at all, so a run that was interrupted goes on where it was.

    Args:
        systems: with elements. Of more than three planets, see `trio_series`.
        orbits: of the innermost planet.
        steps: at how many times elements are recorded.
        cache: a folder; None for PLAUSIBLE_CACHE, or where that is not set for ~/.cache/plausible.
        workers: threads, which REBOUND lets run side by side; None for one a processor.
        progress: show a bar.
    """
    elements = _checked(systems, orbits, steps, workers)
    folder = cache_folder(cache) / "planet-series"
    folder.mkdir(parents=True, exist_ok=True)
    chunks = [elements[start : start + _CHUNK] for start in range(0, len(elements), _CHUNK)]
    paths = [folder / f"{_name(chunk, orbits, steps)}.npz" for chunk in chunks]
    found = [_read(path, chunk, steps) for path, chunk in zip(paths, chunks, strict=True)]
    missing = [i for i, kept in enumerate(found) if kept is None]
    total = sum(len(chunks[i]) for i in missing)
    stop, failures = threading.Event(), []

    def integrated(number: int, after: Callable[[], None]) -> tuple[np.ndarray, np.ndarray]:
        tracks: list[Track] = []
        for one in chunks[number]:
            if stop.is_set():
                raise _Stopped
            try:
                tracks.append(integrate(one, orbits=orbits, steps=steps))
            except BaseException as error:  # after which nobody begins another chunk
                failures.append(error)
                stop.set()
                raise
            after()
        values = np.stack([track.values for track in tracks]).astype(np.float32)
        met = np.array([track.met for track in tracks])
        _write(paths[number], values, met)
        return values, met

    with _bar(total, shown=progress) as after, ThreadPoolExecutor(workers or os.cpu_count() or 1) as pool:
        waiting: dict[int, Future] = {i: pool.submit(integrated, i, after) for i in missing}
        try:
            for i, future in waiting.items():
                found[i] = future.result()
        except BaseException as error:  # an interrupt too: let nobody wait for what has not begun
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            if isinstance(error, _Stopped):
                raise failures[0] from None
            raise
    whole = [kept for kept in found if kept is not None]
    empty = np.empty((0, steps, elements.shape[1] * len(CHANNELS)), np.float32)
    return PlanetSeries(
        values=torch.from_numpy(np.concatenate([empty, *(values for values, _ in whole)])),
        masses=systems.masses.double().clone(),
        met=torch.from_numpy(np.concatenate([np.empty(0), *(met for _, met in whole)])),
    )


def trio_series(series: PlanetSeries) -> PlanetSeries:
    """Every three neighbours in the series of systems of P ≥ 3 planets: N * (P - 2), a system's trios together.

    Unlike the series of `adjacent_trios`, these feel the other planets. Semimajor axes are in units of the trio's own innermost
    planet's at the first recorded time, and all trios of a system have met when two of its planets have.
    """
    count, steps, _ = series.values.shape
    planets = series.masses.shape[1]
    if planets < 3:
        raise ValueError(f"systems must have three planets or more, got {planets}")
    members = torch.arange(planets - 2)[:, None] + torch.arange(3)
    values = (
        series.values.reshape(count, steps, planets, len(CHANNELS))[:, :, members].movedim(2, 1).flatten(0, 1).clone()
    )
    axis = CHANNELS.index("semimajor_axis")
    values[..., axis] /= values[:, :1, :1, axis].clone()
    return PlanetSeries(
        values=values.flatten(2),
        masses=series.masses[:, members].flatten(0, 1),
        met=series.met.repeat_interleave(planets - 2),
    )


def adjacent_trios(systems: PlanetSystems) -> PlanetSystems:
    """Every three neighbours of systems of P ≥ 3 planets, as systems of their own: N * (P - 2), a system's trios together.

    Semimajor axes are in units of the trio's own innermost planet's; the outcome, which is that of the whole system, is
    counted in the trio's own orbits too: log10(period of the trio's innermost planet / of the system's) is taken off.
    """
    planets = systems.masses.shape[1]
    if planets < 3 or not systems.elements.shape[2]:
        raise ValueError(
            f"systems must have elements of three planets or more, got {systems.name} with {planets} planets and "
            f"{systems.elements.shape[2]} elements each"
        )
    per = planets - 2
    first = torch.arange(per)
    members = first[:, None] + torch.arange(3)  # (per, 3)
    elements = systems.elements[:, members].flatten(0, 1).clone()
    elements[:, :, _AXIS] /= elements[:, :1, _AXIS].clone()
    slower = trio_delays(systems).flatten()
    again = torch.arange(len(systems)).repeat_interleave(per)
    shadows = len(systems.shadow_log10_time) == len(systems)
    return replace(
        systems,
        name=f"trios of {systems.name}",
        runs=tuple(f"{run}:{trio}" for run in systems.runs for trio in range(per)),
        masses=systems.masses[:, members].flatten(0, 1),
        period_ratios=systems.period_ratios[:, members[:, :2]].flatten(0, 1),
        separations=systems.separations[:, members[:, :2]].flatten(0, 1),
        elements=elements,
        features=systems.features[again],
        resonances=systems.resonances[again],
        log10_time=systems.log10_time[again] - slower,
        survived=systems.survived[again],
        shadow_log10_time=systems.shadow_log10_time[again] - slower if shadows else systems.shadow_log10_time,
        shadow_survived=systems.shadow_survived[again] if shadows else systems.shadow_survived,
    )


def trio_delays(systems: PlanetSystems) -> Tensor:
    """(N, P - 2): log10 of the period of each trio's innermost planet over that of the system's."""
    longer = systems.period_ratios.log10().cumsum(1)
    return torch.cat([torch.zeros(len(systems), 1, dtype=longer.dtype), longer], 1)[:, : systems.masses.shape[1] - 2]


def _checked(systems: PlanetSystems, orbits: float, steps: int, workers: int | None) -> np.ndarray:
    planets, known = systems.elements.shape[1:]
    if known != len(ELEMENTS):
        raise ValueError(f"systems must have elements, and {systems.name} has none; the random set and five planets do")
    if planets < 2:
        raise ValueError(f"systems must have two planets or more, got {planets}")
    if not (np.isfinite(orbits) and orbits > 0):
        raise ValueError(f"orbits must be positive, got {orbits}")
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ValueError(f"steps must be a positive integer, got {steps!r}")
    if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 1):
        raise ValueError(f"workers must be a positive integer or None, got {workers!r}")
    elements = systems.elements.double().numpy().copy()
    broken = [row for row, good in enumerate(np.isfinite(elements).all((1, 2))) if not good]
    if broken:
        raise ValueError(f"elements must be finite, and those of system {broken[0]} are not")
    if len(elements):
        elements[:, :, _AXIS] /= elements[:, :1, _AXIS]
        if not (elements[:, 1:, _AXIS] > elements[:, :-1, _AXIS]).all():
            raise ValueError("planets must be in the order of their semimajor axes, the innermost first")
    return elements


def _name(chunk: np.ndarray, orbits: float, steps: int) -> str:
    """The same for the same systems, wherever they come from; whatever changes the numbers must change it."""
    told = hashlib.sha256(f"{_FORMAT} {STEP!r} {float(orbits)!r} {steps} {chunk.shape}".encode())
    told.update(np.ascontiguousarray(chunk, dtype="<f8").tobytes())
    return told.hexdigest()[:32]


def _read(path: Path, chunk: np.ndarray, steps: int) -> tuple[np.ndarray, np.ndarray] | None:
    """What the file has; None where there is none, or one that a crash of the machine left broken."""
    try:
        values, met = read_npz(path, "values", "met")
    except (FileNotFoundError, ValueError):
        return None
    count, planets, _ = chunk.shape
    fits = values.shape == (count, steps, planets * len(CHANNELS)) and met.shape == (count,)
    return (values.astype(np.float32), met.astype(np.float64)) if fits else None


def _write(path: Path, values: np.ndarray, met: np.ndarray) -> None:
    """A temporary file beside it, then a rename: whoever reads sees all of it or nothing."""
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        with temporary.open("wb") as handle:
            np.savez(handle, values=values, met=met)
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _bar(total: int, *, shown: bool) -> Any:
    """A context that gives a function to call after every system."""
    if not (shown and total and sys.stderr.isatty()):
        return nullcontext(lambda: None)
    return _Bar(total)


class _Bar:
    def __init__(self, total: int):
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("integrating"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=Console(stderr=True))
        self._task = self._progress.add_task("", total=total)

    def __enter__(self) -> Callable[[], None]:
        self._progress.start()
        return lambda: self._progress.advance(self._task)

    def __exit__(self, *_: object) -> None:
        self._progress.stop()
