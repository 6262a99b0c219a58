"""Several methods on one network and one data set, judged on examples that no method has seen."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from ..core import priors
from ..core.errors import NotSupported
from ..core.fit import fit
from ..core.method import Method
from ..core.model import BayesianModel
from ..core.predictive import Predictive
from ..datasets import Dataset
from ..inference.mcmc import HMC
from .agreement import plain_words
from .images import IMAGES, image_setting
from .scoring import columns, over_seeds, scores
from .settings import METHODS, SETTINGS, UNASKED, Setting, model_for, setting_for
from .tables import Column, Estimate, comparison_table
from .temperature import TemperatureScaled, fit_temperature, held_out
from .truth import Truth, distances, find_truth, own_distances, words_of
from .truth import columns as truth_columns

SCALED = "map-temperature"  # the row of temperature scaling
Predictions = tuple[Predictive, Predictive | None]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What `compare` found.

    Attributes:
        data: What was trained and judged on.
        seeds: The seeds of the runs.
        runs: Every method's scores, one dictionary a seed.
        posteriors: Every method's posterior of the first seed; each has `predict`.
        predictions: What each of them predicts for the test part, and for the outliers if there are any.
        outliers: Inputs unlike the data, if there are any.
        outliers_are: What they are, in words.
        title: One line that says what was compared.
        notes: What a reader should know of single methods.
        truth: The long chains that every method's distance is measured from, if asked for.
    """

    data: Dataset
    seeds: tuple[int, ...]
    runs: Mapping[str, Sequence[dict[str, float]]]
    posteriors: Mapping[str, Any]
    predictions: Mapping[str, Predictions]
    outliers: Tensor | None = None
    outliers_are: str = ""
    title: str = ""
    notes: tuple[str, ...] = ()
    truth: Truth | None = None

    @property
    def columns(self) -> dict[str, Column]:
        """What is reported, by the key of `rows`."""
        from_truth = {} if self.truth is None else truth_columns(self.data)
        return {**self.scores, **from_truth}

    @property
    def scores(self) -> dict[str, Column]:
        """What is reported of the predictions themselves."""
        return columns(self.data, self.outliers is not None)

    @property
    def rows(self) -> dict[str, dict[str, Estimate]]:
        """Mean and standard error over seeds: `rows["swag"]["nll"].mean`."""
        return {method: over_seeds(runs) for method, runs in self.runs.items()}

    def trade_off(self) -> Any:
        """NLL against seconds, as letters for a terminal."""
        from .scatter import scatter

        return scatter(self.rows)

    def report(self, path: str | Path = "report.html") -> Path:
        """Write one self-contained HTML file with the table and pictures."""
        from .page import write_report

        return write_report([self], path)

    def __rich__(self) -> Any:
        from rich.console import Group
        from rich.text import Text

        parts: list[Any] = [Text(self.title, style="bold"), comparison_table(self.rows, self.scores)]
        if self.truth is not None:  # a table of its own: both together are wider than a terminal
            parts += [Text(f"\nHow far from {self.truth.name}", style="bold")]
            parts += [comparison_table(self.rows, truth_columns(self.data))]
        return Group(*parts)

    def __str__(self) -> str:
        from rich.console import Console

        console = Console(width=140, no_color=True)
        with console.capture() as captured:
            console.print(self)
        return captured.get()


def compare(
    data: str | Path | Dataset,
    methods: Sequence[str] | Mapping[str, Method] | None = None,
    *,
    target: str | None = None,
    model: BayesianModel | None = None,
    prior: Any = None,
    outliers: Tensor | None = None,
    seeds: int | Sequence[int] | None = None,
    epochs: int | None = None,
    examples: int | None = None,
    data_dir: str | Path | None = None,
    truth: str | None = None,
    truth_steps: int | None = None,
    progress: bool = True,
) -> Comparison:
    """Train several methods on the same network and data, several times each, and score what they predict.

    The data and their split stay the same; a seed changes the initial weights and every random number of a run.

    Args:
        data: The name of an embedded set such as "moons", of a set of images such as "mnist", the path of a CSV or
            Parquet file, or a `Dataset`.
        methods: Names as in `plausible methods`, or methods by the names that their rows get. None takes all, HMC only
            on the smallest networks. With "map" and labels, temperature scaling is one more row.
        target: The column of a file to predict.
        model: Your own network with its likelihood and prior; None takes a fully connected one.
        prior: Of the weights of that network: one of `pl.priors`, or a text such as "student-t(5, 1)"; None takes a normal one.
        outliers: Inputs unlike the data, to see whether a method notices; None takes what is known of the embedded sets.
        seeds: How many, or which; None takes five, for sets of images two.
        epochs: Passes over the data; HMC's steps keep their proportion. None: long enough for data of this size.
        examples: How many images to train on, of sets of images; None takes 10,000. A fifth as many are judged.
        data_dir: The folder of sets of images; None takes PLAUSIBLE_DATA.
        truth: "hmc" or "nuts": run long chains first, check that they agree, and add every method's distance from them.
        truth_steps: Transitions of each of those chains, warm-up included; None takes 1,000, and four times as many where
            they do not agree.
        progress: Show a bar.
    """
    setting, known = _setting(data, target, examples, data_dir)
    if prior is not None and model is not None:
        raise ValueError("give model or prior, not both: a model has a prior of its own")
    believed = priors.from_string(prior) if isinstance(prior, str) else prior
    setting = replace(setting.lasting(known, epochs), prior=believed)
    chosen, left_out = _methods(methods, setting, model)
    wanted = setting.seeds if seeds is None else seeds
    numbers = tuple(range(wanted)) if isinstance(wanted, int) else tuple(wanted)
    if not numbers:
        raise ValueError(f"seeds must be at least one, got {seeds!r}")
    found, meaning = setting.outliers(known) if outliers is None else (outliers, "the outliers given")
    long = None if truth is None else _truth(truth, truth_steps, known, setting, model, numbers[0], progress)
    study = _Study(known, setting, model, found, long)
    runs: dict[str, list[dict[str, float]]] = {}
    posteriors: dict[str, Any] = {}
    predictions: dict[str, Predictions] = {}
    jobs = _jobs(chosen, known)
    with _Bar(known.name, len(jobs) * len(numbers), progress) as bar:
        for name, run in jobs.items():
            for seed in numbers:
                bar.begin(name, seed)
                posterior, seconds = run(study, seed)
                result, predicted = study.judged(posterior, seconds)
                runs.setdefault(name, []).append(result)
                posteriors.setdefault(name, posterior)
                predictions.setdefault(name, predicted)
                bar.advance()
    notes = [*setting.remarks, *left_out]
    if long is not None:
        own = own_distances(long, known.x_test)
        name = f"{long.name} (truth)"
        result, predicted = study.judged(long.posterior, long.seconds)
        runs[name], posteriors[name], predictions[name] = [{**result, **own}], long.posterior, predicted
        notes += words_of(long, own)
    others = {
        k: p for k, p in posteriors.items() if long is None or p is not long.posterior
    }  # all is said of the truth
    notes += [told for name, posterior in others.items() if (told := _note(name, posterior, known, setting))]
    return Comparison(
        data=known, seeds=numbers, runs=runs, posteriors=posteriors, predictions=predictions, outliers=found,
        outliers_are=meaning, title=_title(known, setting, model, len(numbers)), notes=tuple(notes), truth=long,
    )  # fmt: skip


@dataclass(frozen=True)
class _Study:
    data: Dataset
    setting: Setting
    model: BayesianModel | None
    outliers: Tensor | None
    truth: Truth | None

    def fit(self, method: Method, train: tuple[Tensor, Tensor], seed: int) -> Any:
        model = self.model or model_for(self.data, self.setting, seed)
        length: dict[str, Any] = {"epochs": self.setting.epochs}
        if method.full_batch:
            # As many slopes as HMC would take: a transition of Metropolis or MALA is a sixty-fourth of one of HMC.
            steps = self.setting.transitions * HMC.slopes_per_step // method.slopes_per_step
            length = {"steps": steps, "num_modes": self.setting.chains}
        # A network that was given has one set of weights; every seed needs its own start.
        init = "reset" if self.model is not None else None
        return fit(model, train, method, seed=seed, init=init, progress=False, **length)

    def judged(self, posterior: Any, seconds: float) -> tuple[dict[str, float], Predictions]:
        posterior.predict(self.data.x_test[:2])  # the first call loads and compiles what later ones find
        began = time.perf_counter()
        predictive = posterior.predict(self.data.x_test)
        _ = predictive.mean
        milliseconds = 1000 * (time.perf_counter() - began)
        outside = None if self.outliers is None else posterior.predict(self.outliers)
        found = scores(predictive, self.data, outside)
        if self.truth is not None:
            found.update(distances(predictive, self.truth.predictive))
        return {**found, "seconds": seconds, "milliseconds": milliseconds}, (predictive, outside)


_Job = Callable[[_Study, int], tuple[Any, float]]  # a posterior, and the seconds it took


def _jobs(chosen: Mapping[str, Method], data: Dataset) -> dict[str, _Job]:
    """Every row's run, temperature scaling right after MAP."""
    jobs: dict[str, _Job] = {}
    for name, method in chosen.items():
        jobs[name] = _plain(method)
        if name == "map" and data.task == "classification" and data.y_train.ndim == 1:
            jobs[SCALED] = _scaled(method)
    return jobs


def _plain(method: Method) -> _Job:
    def run(study: _Study, seed: int) -> tuple[Any, float]:
        began = time.perf_counter()
        posterior = study.fit(method, study.data.train, seed)
        return posterior, time.perf_counter() - began

    return run


def _scaled(method: Method) -> _Job:
    def run(study: _Study, seed: int) -> tuple[Any, float]:
        x, y = study.data.train
        train, validation = held_out(len(x), seed)
        began = time.perf_counter()
        posterior = study.fit(method, (x[train], y[train]), seed)
        temperature = fit_temperature(posterior.predict(x[validation]).outputs[0], y[validation])
        return TemperatureScaled(posterior=posterior, temperature=temperature), time.perf_counter() - began

    return run


# --- what compare is told ---


def _setting(
    data: str | Path | Dataset, target: str | None, examples: int | None, data_dir: str | Path | None
) -> tuple[Setting, Dataset]:
    if isinstance(data, Dataset):
        return setting_for(data), data
    name = str(data).lower().replace("_", "-")
    if name in IMAGES and target is None:
        setting = image_setting(name, examples, data_dir)
        return setting, setting.load()
    if examples is not None or data_dir is not None:
        raise ValueError(f"examples and data_dir are for {', '.join(IMAGES)}, got {str(data)!r}")
    if name in SETTINGS and target is None:
        setting = SETTINGS[name]
        return setting, setting.load()
    if target is None:
        raise ValueError(
            f"data must be one of {', '.join([*SETTINGS, *IMAGES])}, a Dataset, or a file with target= the column to predict, "
            f"got {str(data)!r}"
        )
    from ..tabular.dataset import table_dataset

    table = table_dataset(data, target)
    return setting_for(table), table


def _methods(
    given: Sequence[str] | Mapping[str, Method] | None, setting: Setting, model: BayesianModel | None
) -> tuple[dict[str, Method], list[str]]:
    if isinstance(given, Mapping):
        return dict(given), []
    if given is None:
        chosen = {key: METHODS[key] for key in UNASKED}
        if setting.small and model is None:
            return chosen, []
        long = [key for key, method in chosen.items() if method.full_batch]
        note = f"{' and '.join(long)} takes long on a network of this size, so it runs only when asked: --methods hmc"
        return {key: method for key, method in chosen.items() if key not in long}, [note] if long else []
    unknown = [key for key in given if key not in METHODS]
    if unknown or not given:
        raise ValueError(f"methods must be any of {', '.join(METHODS)}, got {unknown or 'none'}")
    return {key: METHODS[key] for key in given}, []


def _truth(
    name: str, steps: int | None, data: Dataset, setting: Setting, model: BayesianModel | None, seed: int, shown: bool
) -> Truth:
    if name not in METHODS or not METHODS[name].full_batch:
        exact = [key for key, method in METHODS.items() if method.full_batch]
        raise ValueError(f"truth must be any of {', '.join(exact)}, got {name!r}")
    if shown:
        print(f"{data.name} · long chains of {name}, the truth to hold the others against", file=sys.stderr)
    return find_truth(name, METHODS[name], model or model_for(data, setting, seed), data, steps, seed)


def _note(name: str, posterior: Any, data: Dataset, setting: Setting) -> str | None:
    """What a reader should know of one method, in plain words."""
    if isinstance(posterior, TemperatureScaled):
        return (
            f"{name}: a temperature of {posterior.temperature:.2f}, fitted on a fifth of the training part "
            "after training on the rest"
        )
    told = plain_words(name, posterior, data.x_test, f"--epochs {4 * (setting.epochs or 1)}")
    return "; ".join(filter(None, [told, _evidence(name, posterior)])) or None


def _evidence(name: str, posterior: Any) -> str | None:
    """The log evidence of the first seed, where the method estimates one."""
    try:
        value = float(posterior.evidence().log_marginal_likelihood)
    except NotSupported:
        return None
    return f"{name}: a log evidence of {value:.1f}, to choose between networks and priors by (higher is better)"


def _title(data: Dataset, setting: Setting, model: BayesianModel | None, seeds: int) -> str:
    network = setting.network.named(data) if model is None else "the given network"
    return (
        f"{data.name}: {'the first ' * setting.partial}{len(data.x_train):,} training and {len(data.x_test):,} test "
        f"examples, {network}, {setting.epochs} epochs, {seeds} seed{'s' * (seeds != 1)}"
    )


class _Bar:
    """One bar for all runs of a comparison; where nobody watches, one line a method."""

    def __init__(self, data: str, total: int, shown: bool):
        self.data, self.total, self.shown = data, total, shown
        self.last = ""
        self.bar: Any = None

    def __enter__(self) -> _Bar:
        if self.shown and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

            self.bar = Progress(
                SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:.0f} %"),
                TimeElapsedColumn(), console=Console(stderr=True), transient=True,
            )  # fmt: skip
            self.bar.start()
            self.task = self.bar.add_task(self.data, total=self.total)
        return self

    def begin(self, method: str, seed: int) -> None:
        if self.bar is not None:
            self.bar.update(self.task, description=f"{self.data} · {method} · seed {seed}")
        elif self.shown and method != self.last:
            print(f"{self.data} · {method}", file=sys.stderr)
        self.last = method

    def advance(self) -> None:
        if self.bar is not None:
            self.bar.advance(self.task)

    def __exit__(self, *_: Any) -> None:
        if self.bar is not None:
            self.bar.stop()
