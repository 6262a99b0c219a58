"""One run of the loop: steps, kept records, checkpoints, and the posteriors at the end."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..weights import tree
from ..weights.algebra import Weights
from ..weights.rng import Keys, forked, run_key
from . import batch as batches
from .chunks import Chunks
from .errors import NotSupported
from .execution import Execution, Plan, make_plan
from .files.checkpoint import Keeper
from .files.mapped import MappedFolder
from .finiteness import FirstNotFinite
from .many import Stacked
from .method import Method
from .model import BayesianModel, InternalBatch
from .partition import Partitioned
from .places import filled
from .posteriors import Mixture, Posterior, Samples
from .progress import Progress
from .records import Records
from .refresh import EXAMPLES, fill, statistics_of
from .refusals import refuse_different_courses, refuse_unsuitable, warn_if_improper
from .review import SHARE, SHOWN, review
from .source import Source
from .starts import starts
from .stopped import reason
from .surroundings import deterministic_algorithms, interrupts
from .target import Target
from .validation import validation_nll
from .whole_data import chunking, whole_data

log = logging.getLogger("plausible")

DEFAULT_EPOCHS = 50
BANK = 64  # draws whose norm statistics are gathered, as many as `predict` takes by default
AUGMENT = 0x617567


class Run:
    """One run of the loop: everything that `fit` and `fit_many` share."""

    def __init__(
        self, model: Target, methods: Sequence[Method], source: Source, *, modes: int, seeds: list[int], keys: Tensor,
        device: torch.device, epochs: int | None, steps: int | None, init: Any, augment: Any, checkpoint: Any, resume: bool,
        callbacks: Sequence[Callable[[dict[str, Any]], Any]], progress: bool, compile: bool | None, vectorise: bool | None,
        deterministic: bool, validation: Source | None, precision: str | None, separate: bool = False,
    ):  # fmt: skip
        if methods[0].fixed_batches:
            source = (
                Stacked([Partitioned(p) for p in source.parts]) if isinstance(source, Stacked) else Partitioned(source)
            )
        self.source, self.augment, self.callbacks, self.validation = source, augment, list(callbacks), validation
        self.separate, self.seeds, self.device = separate, seeds, device
        self.deterministic, self.shown = deterministic, progress
        full = methods[0].full_batch
        self.steps_per_epoch = 1 if full else source.steps_per_epoch
        self.steps = _number_of_steps(epochs, steps, self.steps_per_epoch)
        self.model = model.bound(
            num_data=source.num_data, num_steps=max(1, self.steps), steps_per_epoch=self.steps_per_epoch,
            seeks_mode=methods[0].is_point,
        )  # fmt: skip
        self.model.place_constants(device)
        self.methods = [m.resolved(self.model, self.steps) for m in methods]
        refuse_unsuitable(self.model, methods[0], augment)
        warn_if_improper(self.model)
        if methods[0].needs_validation and validation is None:
            raise ValueError("this method chooses by held-out data, so give it some: pl.fit(..., validation=(x, y))")
        refuse_different_courses(methods, self.methods, self.steps)
        self._find_side_effects()
        # A network that somebody else has trained, and that stays as it is, has norm statistics of its own.
        whole = isinstance(init, str) and init == "network"
        self.as_it_came = [self.steps == 0 and (whole or init is None and (m == 0 or separate)) for m in range(modes)]
        self.init = init
        params = self._starts(modes)
        if isinstance(init, str) and init == "network" and modes > 1 and methods[0].is_point and not separate:
            log.warning(
                'with init="network" all %d modes start and stay alike; "reset" or "prior" makes them differ', modes
            )
        if resume and checkpoint is None:
            raise ValueError("resume=True needs checkpoint=path, the file to go on from")
        plan = make_plan(self.model, self.methods[0], modes, self.steps, device, compile, vectorise)
        self.everything = whole_data(source, self.model, device, modes if plan.vectorised else 1) if full else None
        if isinstance(self.everything, Chunks):  # unrolled by a compiler or a graph, chunks would be in memory together
            if compile:
                log.warning("steps run uncompiled, since the data are taken in chunks")
            plan = dataclasses.replace(plan, compiled=False, captured=False)
        self.execution = Execution(self.model, self.methods, params, keys, plan, seeds)
        self.execution.per_mode_batch = isinstance(source, Stacked)
        if plan.vectorised and self.steps:
            self.execution.fall_back_to_loop_if_vmap_fails(self._batch(0))
        self.keeper = None if checkpoint is None else Keeper(checkpoint, self._configuration(precision))
        self.folder = MappedFolder(None if self.keeper is None else self.keeper.setting.path)
        self.records = self._records()
        self.done, self.stopped = 0, False
        if resume:
            self._resume()
        elif self.steps:
            self.execution.replan()

    # --- the loop ---

    def go(self) -> list[Posterior]:
        """Run to the end and return one posterior per mode."""
        method = self.methods[0]
        keeps, adapts = frozenset(method.kept_steps(self.steps)), frozenset(method.adapted_steps(self.steps))
        sweeps, probes = frozenset(method.swept_steps(self.steps)), frozenset(method.probed_steps(self.steps))
        bar = Progress(type(method).__name__, self.done, self.steps, self.shown)
        watch, batch = FirstNotFinite(), None
        with interrupts() as interrupted, deterministic_algorithms(self.deterministic), contextlib.closing(bar):
            while self.done < self.steps and not self.stopped:
                step = self.done
                if step in sweeps:
                    for place, batch in enumerate(self.source.sweep()):
                        self.execution.gather(batch, first=place == 0)
                before, batch = batch, self._batch(step)
                if step in probes:
                    self._probe(step, batch)
                shown = self.execution.advance(step, batch)
                watch.see(step, shown["log_joint"])
                if self.device.type == "cpu":  # where looking is free, stop at once
                    self._stop_if_bad(watch.found(), batch, before)
                if step in adapts:
                    self.execution.adapt(step)
                if step in keeps:
                    for ring, record in zip(self.records, self.execution.keep(), strict=True):
                        ring.add(record)
                self.done += 1
                bar.after(step)
                if bar.due():
                    bar.draw(self.done, {k: float(v.float().mean()) for k, v in shown.items()})
                stop = self._tell(step, shown)
                if self.keeper and (self.keeper.due(self.done) or self.done == self.steps or stop or interrupted()):
                    # A log joint belongs to the point before its step: a step that went wrong shows first in the weights.
                    bad = watch.found()
                    broken = self._broken() if bad < 0 else []
                    self._stop_if_bad(step if broken else bad, broken=broken)
                    self._write(stopped=stop)
                if interrupted() and self.done < self.steps:
                    raise KeyboardInterrupt(self._interrupted_message())
                if stop:
                    break
            self._stop_if_bad(watch.found())
        with deterministic_algorithms(self.deterministic):
            return self._posteriors()

    def _batch(self, step: int) -> Any:
        if self.everything is not None or self.methods[0].full_batch:
            return self.everything
        batch = self.source.batch(step)
        if self.augment is None or batch is None:
            return batch
        if isinstance(self.source, Stacked):  # every run of a `fit_many` augments its own data by its own seed
            rows = [self._augmented(batches.rows(batch[0], i), seed, step) for i, seed in enumerate(self.seeds)]
            return InternalBatch((torch.utils._pytree.tree_map(lambda *t: torch.stack(t), *rows), *batch[1:]))
        return InternalBatch((self._augmented(batch[0], self.seeds[0], step), *batch[1:]))

    def _starts(self, modes: int) -> list[Weights]:
        """Where the modes start, the same whenever it is asked."""
        if self.separate:
            return [starts(self.model, self.init, 1, s, self.device)[0] for s in self.seeds]
        return starts(self.model, self.init, modes, self.seeds[0], self.device)

    def _probe(self, step: int, batch: Any) -> None:
        """Let the method look closely at a batch, which `filled` tells it to be one that an epoch's end cuts short."""
        model = self.execution.model
        if isinstance(batch, InternalBatch) and batch[2] is not None:
            self.execution.model = model.bound(filled=filled(self.source, step, batch))
        self.execution.probe(step, batch)
        self.execution.model = model  # the one that steps were compiled with

    def _augmented(self, inputs: Any, seed: int, step: int) -> Any:
        assert self.augment is not None
        with forked(seed, AUGMENT, step, devices=[self.device]):
            return self.augment(inputs)

    def _stop_if_bad(self, bad: int, batch: Any = None, before: Any = None, broken: Sequence[str] = ()) -> None:
        if bad < 0:
            return
        kept = f"; the last good checkpoint is {self.keeper.setting.path}" if self.keeper and self.keeper.wrote else ""
        method = self.methods[0]
        clip = ", or clip_norm" if hasattr(getattr(method, "base", method), "clip_norm") else ""
        known = [b if isinstance(b, InternalBatch) else None for b in (batch, before)]
        raise FloatingPointError(reason(bad, broken=broken, batch=known[0], before=known[1], clip=clip) + kept)

    def _broken(self) -> list[str]:
        """The unknowns that are not finite in some mode."""
        return [
            k for lane in self.execution.lanes for k, v in lane["params"].items() if not bool(torch.isfinite(v).all())
        ]

    def _tell(self, step: int, shown: dict[str, Tensor]) -> bool:
        if not self.callbacks and self.validation is None:
            return False
        event: dict[str, Any] = {"step": step, "steps": self.steps, "epoch": step // self.steps_per_epoch, **shown}
        if self.validation is not None and (step + 1) % self.steps_per_epoch == 0:
            event["validation_nll"] = validation_nll(self.execution, self.validation, self.source)
        return any([callback(event) is True for callback in self.callbacks])  # noqa: C419 - every callback hears

    def _interrupted_message(self) -> str:
        if self.keeper is None:
            return f"stopped after step {self.done} of {self.steps}; give checkpoint=path to be able to resume"
        return f"stopped after step {self.done} of {self.steps}; resume=True goes on from {self.keeper.setting.path}"

    def _records(self) -> list[Records]:
        method, lanes = self.methods[0], len(self.execution.lanes)
        capacity, kept = method.capacity(self.steps), len(method.kept_steps(self.steps))
        # What is written over cannot be gone back to after a kill.
        folder = self.folder if capacity >= kept else None
        inside = self.execution.plan.vectorised
        return [
            Records(capacity, folder, lane=i, lanes=lanes, modes_inside=inside) for i in range(lanes if kept else 0)
        ]

    # --- the end ---

    def _posteriors(self) -> list[Posterior]:
        run, answers = self.execution, []
        model = self.model.bound(rng=None, seeks_mode=False, example=None)
        if isinstance(model, BayesianModel):
            model = model.bound(training=False, precision=None, buffers=None)
        for m in range(run.modes):
            draws = None
            if self.records and self.records[0].held:
                draws = self.records[0 if run.plan.vectorised else m].of_mode(m)
            state = tree.clone(run.state(m))
            buffers = run.mode_buffers(m)
            if run.mode_method(m).post_hoc:
                answer = self._surveyed(m, model, state, buffers)
            else:
                answer = run.mode_method(m).posterior(model, state, draws)
                if isinstance(answer, Samples) and self.records[0].on_disk:
                    answer.runs_on = self.device
            if buffers is not None:
                answer.bank = {k: v.unsqueeze(0).expand(BANK, *v.shape) for k, v in buffers.items()}
            answers.append(answer)
        self._refresh(answers)
        self._review(answers)
        return answers

    def _review(self, answers: list[Posterior]) -> None:
        """Look back from where the answers can predict."""
        for m, (answer, start) in enumerate(zip(answers, self._starts(len(answers)), strict=True)):
            review(self.execution.mode_method(m), answer, start, functools.partial(self._shown, m), self.done)

    def _shown(self, mode: int) -> Any:
        """What the last epoch began with: a resumed run looks at what one that was never killed looks at."""
        source = self.source.parts[mode] if isinstance(self.source, Stacked) else self.source
        if isinstance(self.everything, Chunks):
            return None
        if self.everything is not None:
            return self.everything if source is self.source else batches.rows(self.everything, mode)
        began = (self.done - 1) // self.steps_per_epoch * self.steps_per_epoch
        return source.look(began, min(SHOWN, self.done * source.batch_size // SHARE))

    def _surveyed(self, mode: int, model: Target, state: Any, buffers: Any) -> Posterior:
        """The answer of a method that looks at the data again, in eval mode with the statistics of these weights."""
        own = self.source.parts[mode] if isinstance(self.source, Stacked) else self.source
        statistics: dict[str, Tensor] = {}
        if isinstance(model, BayesianModel):
            network = model.network
            if network.statistics and self.as_it_came[mode]:
                statistics = {k: network.buffers[k].to(self.device) for k in network.statistics}
            elif network.statistics:
                statistics = statistics_of(model, state["params"], list(own.some_inputs(EXAMPLES)))
            model = model.bound(buffers={**(buffers or {}), **statistics} or None)
        validation = None if self.validation is None else self.validation.sweep
        answer = self.execution.mode_method(mode).survey(model, state, own.sweep, validation)
        answer.mean_bank = {**(buffers or {}), **statistics} or None
        return answer

    def _refresh(self, answers: list[Posterior]) -> None:
        if not isinstance(self.model, BayesianModel) or not self.model.network.statistics:
            return
        if not self.model.training:  # weights inferred with the network's own statistics predict with them
            for answer in answers:
                rows = max(max(s.indices) for s in answer.strata(2**31, 0)) + 1 if answer.finite else BANK
                fixed = {k: self.model.network.buffers[k].to(self.device) for k in self.model.network.statistics}
                answer.bank = {**(answer.bank or {}), **{k: v.expand(rows, *v.shape) for k, v in fixed.items()}}
            return
        if self.separate:  # each is a posterior of its own, of its own data
            for i, answer in enumerate(answers):
                own = self.source.parts[i] if isinstance(self.source, Stacked) else self.source
                fill(answer, list(own.some_inputs(EXAMPLES)), BANK, 0)
            return
        blocks = list(self.source.some_inputs(EXAMPLES))
        joint = Mixture(answers) if len(answers) > 1 else answers[0]
        fill(joint, blocks, BANK, 0)

    # --- checkpoints ---

    def _configuration(self, precision: str | None) -> dict[str, Any]:
        shapes = {k: [list(v.shape), str(v.dtype)] for k, v in self.model.start.items()}
        return {
            "method": [_described(m) for m in self.methods],
            "likelihood": _described(getattr(self.model, "likelihood", None)),
            "prior": _described(getattr(self.model, "prior", None)),
            "modes": self.execution.modes,
            "seeds": self.seeds,
            "steps": self.steps,
            "num_data": self.source.num_data,
            "batch_size": self.source.batch_size,
            "chunks": chunking(self.everything),
            "precision": precision,
            "temperature": getattr(self.model, "temperature", 1.0),
            "unknowns": shapes,
        }

    def _write(self, stopped: bool) -> None:
        assert self.keeper is not None
        trees: dict[str, Any] = {"state": {str(i): s for i, s in enumerate(self.execution.lanes)}}
        held = {str(i): r.stacked() for i, r in enumerate(self.records) if r.held and not r.on_disk}
        if held:
            trees["records"] = held
        buffers = {str(i): b for i, b in enumerate(self.execution.buffers) if b is not None}
        if buffers:
            trees["buffers"] = buffers
        told = [c.state() if hasattr(c, "state") else None for c in self.callbacks]
        plan = dataclasses.asdict(self.execution.plan)
        self.keeper.write(self.done, trees, [r.noted() for r in self.records], plan, told, stopped)
        self.folder.remove_others()

    def _resume(self) -> None:
        assert self.keeper is not None
        found = self.keeper.read()
        if found is None:
            self.execution.replan()
            return
        trees, manifest = found
        plan = Plan(**manifest["plan"])
        if plan != self.execution.plan:
            ways = {f.name: getattr(plan, f.name) for f in dataclasses.fields(plan)}
            raise ValueError(
                f"{self.keeper.setting.path} was written by a run that went another way ({ways}), and bits would differ; "
                "resume on the same kind of device with the same compile= and vectorise="
            )
        for i, lane in enumerate(self.execution.lanes):
            tree.copy_into(lane, tree.to(trees["state"][str(i)], self.device))
        for i, ring in enumerate(self.records):
            held = trees.get("records", {}).get(str(i))
            ring.restore(manifest["counts"][i], None if held is None else tree.to(held, self.device))
        for i, b in enumerate(self.execution.buffers):
            if b is not None:
                tree.copy_into(b, tree.to(trees["buffers"][str(i)], self.device))
        for callback, told in zip(self.callbacks, manifest["callbacks"], strict=False):
            if told is not None and hasattr(callback, "restore"):
                callback.restore(told)
        self.done, self.stopped = manifest["done"], manifest["stopped"]
        self.execution.replan()

    def _find_side_effects(self) -> None:
        """Whether the network writes buffers or draws from the global generator decides how it may be run."""
        if not isinstance(self.model, BayesianModel):
            return
        inputs = next(iter(self.source.some_inputs(min(4, int(self.source.batch_size)))), None)
        network = self.model.network
        params = {k: v.to(self.device) for k, v in self.model.natural_weights(self.model.start).items()}
        key = run_key(self.seeds[0], 0, device=self.device)
        few = batches.place(batches.rows(inputs, slice(0, 4)), self.device)
        role = "train" if self.model.training else "eval"
        self.model = self.model.bound(example=few)
        network.written, network.draws = network.side_effects(params, few, Keys(key, key[0] * 0), role)
        draws = network.draws
        if draws and role == "train" and self.methods[0].post_hoc:  # what comes after training runs in eval mode
            _, draws = network.side_effects(params, few, Keys(key, key[0] * 0), "eval")
        if draws and (role == "eval" or self.methods[0].post_hoc):
            raise NotSupported(
                f"this network draws random numbers in eval mode too, so its log joint is another one at every call and "
                f"{type(self.methods[0]).__name__} has nothing to work on; is a dropout missing training=self.training?"
            )


def _described(thing: Any) -> str:
    return re.sub(r" at 0x[0-9a-f]+", "", repr(thing))  # a user's function or object has an address


def _number_of_steps(epochs: int | None, steps: int | None, steps_per_epoch: int) -> int:
    if epochs is not None and steps is not None:
        raise ValueError(f"give epochs or steps, not both (got epochs={epochs} and steps={steps})")
    for name, value in (("epochs", epochs), ("steps", steps)):
        if value is not None and (not isinstance(value, int) or value < 0):
            raise ValueError(f"{name} must be a non-negative integer, got {value}")
    if steps is not None:
        return steps
    return (DEFAULT_EPOCHS if epochs is None else epochs) * steps_per_epoch
