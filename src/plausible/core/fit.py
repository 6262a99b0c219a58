"""The one loop."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from ..weights.rng import run_key, run_keys
from .data import make_source
from .errors import NotSupported
from .files.checkpoint import Checkpoint
from .many import Stacked
from .method import Method
from .model import PRECISIONS, BayesianModel
from .posteriors import Mixture, Posterior
from .run import Run
from .source import Source
from .surroundings import current_device
from .target import Target


def fit(
    model: Target,
    data: Any,
    method: Method,
    *,
    epochs: int | None = None,
    steps: int | None = None,
    batch_size: int = 128,
    num_modes: int = 1,
    init: Any = None,
    augment: Callable[[Any], Any] | None = None,
    validation: Any = None,
    num_data: float | None = None,
    seed: int = 0,
    device: torch.device | str | None = None,
    precision: str | None = None,
    checkpoint: str | Path | Checkpoint | None = None,
    resume: bool = False,
    deterministic: bool = False,
    callbacks: Sequence[Callable[[dict[str, Any]], Any]] = (),
    progress: bool = True,
    compile: bool | None = None,
    vectorise: bool | None = None,
) -> Posterior:
    """Infer the unknowns of a model from data.

    Args:
        model: A `BayesianModel`, or a `LogDensity` with `data=None`.
        data: (x, y) tensors or arrays, with weights as a third if there are any; a `Dataset`; a `DataLoader`.
        method: Such as `pl.SWAG()`.
        epochs: Passes over the data; for methods that see all data at a time, steps.
        steps: Instead of `epochs`. Everything a method does counts, warm-up included.
        batch_size: Examples a step.
        num_modes: Independent runs, vectorised; the answer is their mixture.
        init: Where to start: None (mode 0 at the network's weights, others re-initialised), "network", "reset", "prior",
            a posterior (a warm start) or params.
        augment: A function of a batch's inputs that changes them at random; runs on the device.
        validation: More data, given like `data`; its mean negative log likelihood is shown after every epoch.
        num_data: N, where the data do not say it.
        seed: Every random number of the run follows from it.
        device: None takes a GPU if there is one.
        precision: "bf16" or "fp16" for mixed precision.
        checkpoint: Where to write the state of the run from time to time; a path or a `pl.Checkpoint`.
        resume: Go on from the checkpoint, bit for bit as if nothing had happened.
        deterministic: Only deterministic algorithms, which a GPU needs for bit-exact resuming.
        callbacks: Called with one dictionary after every step; True asks to stop.
        progress: Show a bar.
        compile: Compile the step (None: by a fixed rule).
        vectorise: Run modes under `vmap` (None: by a fixed rule).
    """
    if not isinstance(method, Method):
        raise TypeError(f"method must be an inference method such as pl.MAP(), got {method!r}")
    base, own_modes = method.unfold()
    if own_modes is not None and num_modes != 1:
        raise ValueError(
            f"{type(method).__name__} has {own_modes} modes of its own, so num_modes={num_modes} cannot be given too"
        )
    modes = own_modes or num_modes
    if not isinstance(modes, int) or modes < 1:
        raise ValueError(f"num_modes must be a positive integer, got {modes}")
    place = _device(device)
    target = _bound(model, base, precision)
    source = make_source(target, data, batch_size=batch_size, seed=seed, device=place, num_data=num_data)
    with current_device(place):
        run = Run(
            target, [base], source, modes=modes, seeds=[seed] * modes, keys=run_keys(seed, modes, device=place),
            device=place, epochs=epochs, steps=steps, init=init, augment=augment, checkpoint=checkpoint, resume=resume,
            callbacks=callbacks, progress=progress, compile=compile, vectorise=vectorise, deterministic=deterministic,
            validation=_validation_source(target, validation, batch_size, place), precision=precision,
        )  # fmt: skip
        posteriors = run.go()
    return posteriors[0] if modes == 1 and own_modes is None else Mixture(posteriors)


def fit_many(
    model: Target,
    data: Any,
    method: Method | Sequence[Method],
    *,
    seed: int | Sequence[int] = 0,
    batch_size: int = 128,
    num_data: float | None = None,
    device: torch.device | str | None = None,
    precision: str | None = None,
    epochs: int | None = None,
    steps: int | None = None,
    init: Any = None,
    augment: Callable[[Any], Any] | None = None,
    checkpoint: str | Path | Checkpoint | None = None,
    resume: bool = False,
    deterministic: bool = False,
    callbacks: Sequence[Callable[[dict[str, Any]], Any]] = (),
    progress: bool = True,
    compile: bool | None = None,
    vectorise: bool | None = None,
) -> list[Posterior]:
    """Several fits at once: `data`, `method` and `seed` may each be a list, of one length.

    Data sets must have one shape, methods may differ in numbers only. Each result equals that of its own `fit`.
    The other arguments are those of `fit`.
    """
    lists = {
        "data": isinstance(data, list),
        "method": not isinstance(method, Method),
        "seed": not isinstance(seed, int),
    }
    lengths = {
        name: len(value) for (name, is_list), value in zip(lists.items(), (data, method, seed), strict=True) if is_list
    }  # type: ignore[arg-type]
    if not lengths or len(set(lengths.values())) != 1 or 0 in lengths.values():
        raise ValueError(
            f"fit_many needs lists of one length for data, method or seed, got lengths {lengths}; see fit for one run"
        )
    count = next(iter(lengths.values()))
    methods: list[Method] = list(method) if lists["method"] else [method] * count  # type: ignore[arg-type, list-item]
    seeds: list[int] = list(seed) if lists["seed"] else [seed] * count  # type: ignore[arg-type, list-item]
    _refuse_different_methods(methods)
    place = _device(device)
    target = _bound(model, methods[0], precision)
    parts = [
        make_source(target, d, batch_size=batch_size, seed=s, device=place, num_data=num_data)
        for d, s in zip(data if lists["data"] else [data] * count, seeds, strict=True)
    ]
    source: Source = Stacked(parts) if lists["data"] or (lists["seed"] and not methods[0].full_batch) else parts[0]
    keys = torch.stack([run_key(s, 0) for s in seeds]).to(place)
    with current_device(place):
        run = Run(
            target, methods, source, modes=count, seeds=seeds, keys=keys, device=place, epochs=epochs, steps=steps,
            init=init, augment=augment, checkpoint=checkpoint, resume=resume, callbacks=callbacks, progress=progress,
            compile=compile, vectorise=vectorise, deterministic=deterministic, validation=None, precision=precision,
            separate=True,
        )  # fmt: skip
        return run.go()


# --- what fit is told ---


def _device(device: torch.device | str | None) -> torch.device:
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    place = torch.device(device)
    if place.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {device!r} was asked for, but there is no GPU here; leave device=None")
    return torch.device("cuda", torch.cuda.current_device()) if place.type == "cuda" and place.index is None else place


def _bound(model: Any, method: Method, precision: str | None) -> Target:
    if not isinstance(model, Target):
        hint = "; wrap it: pl.BayesianModel(network, likelihood=...)" if isinstance(model, torch.nn.Module) else ""
        raise TypeError(f"model must be a BayesianModel or a LogDensity, got {type(model).__name__}{hint}")
    if precision not in PRECISIONS:
        raise ValueError(f'precision must be None, "bf16" or "fp16", got {precision!r}')
    return model.bound(training=method.trains, precision=precision) if isinstance(model, BayesianModel) else model


def _refuse_different_methods(methods: Sequence[Method]) -> None:
    first = methods[0]
    for m in methods:
        if not isinstance(m, Method):
            raise TypeError(f"method must be an inference method such as pl.MAP(), got {m!r}")
        if m.unfold()[1] is not None:
            raise NotSupported(f"fit_many runs one mode per entry; {type(m).__name__} has several, use fit")
        rest = {f.name: getattr(m, f.name) for f in dataclasses.fields(m) if f.name not in m.numbers()}
        base = {f.name: getattr(first, f.name) for f in dataclasses.fields(first) if f.name not in first.numbers()}
        if type(m) is not type(first) or rest != base:
            raise ValueError(
                f"the methods of one fit_many may differ in numbers only, got {first} and {m}; give numbers in place of None, "
                "which is whatever a run finds, or call fit for each"
            )


def _validation_source(model: Target, validation: Any, batch_size: int, device: torch.device) -> Source | None:
    return None if validation is None else make_source(model, validation, batch_size=batch_size, seed=0, device=device)
