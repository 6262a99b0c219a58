"""Answers along a run."""

from __future__ import annotations

import pytest
import torch

import plausible as pl
from plausible.experiments.snapshots import Snapshots


@pytest.mark.parametrize("at_mean", [False, True])
def test_moments_that_waited_on_the_host_become_answers_where_the_run_was(at_mean: bool) -> None:
    """Those of wide Kronecker factors are kept in files; an answer that stayed there would predict on a CPU."""
    model = pl.BayesianModel(torch.nn.Linear(2, 2), pl.likelihoods.Categorical())
    params = {k: v.detach() for k, v in model.start.items()}
    state = {"params": {k: v.to("meta") for k, v in params.items()}}  # "meta" stands for a GPU
    kept = {"params": {k: torch.stack([v, v]) for k, v in params.items()}}
    mixture = Snapshots(base=pl.MAP(), count=2, at_mean=at_mean).posterior(model, state, kept)
    assert [str(answer.device) for answer in mixture.components] == ["meta", "meta"]
