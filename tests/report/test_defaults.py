"""With no flag at all, no method is worse than MAP."""

import functools
import math

import pytest
import torch

import plausible as pl
from plausible.report.settings import METHODS, SETTINGS, UNASKED

pytestmark = pytest.mark.slow

# Worse than MAP on a set, with what was measured (the difference of the NLL) and why.
LESS_SURE = "an average over the posterior is less sure than its highest point, which costs where nearly all is right"
EXCEPTIONS = {
    ("hmc", "circles"): f"+0.0049 ± 0.0000: {LESS_SURE}",
    ("laplace", "moons"): f"+0.0003 ± 0.0001: {LESS_SURE}",
    ("laplace", "circles"): f"+0.0017 ± 0.0001: {LESS_SURE}",
    ("laplace", "digits"): f"+0.0331 ± 0.0012: {LESS_SURE}",
    ("laplace", "wine"): f"+0.0160 ± 0.0005: {LESS_SURE}",
}
# Too long for a test where the network is large; `compare` does not run them there unasked either.
LONG = {(name, data) for name in UNASKED for data, s in SETTINGS.items() if METHODS[name].full_batch and not s.small}
CASES = [(name, data) for data in SETTINGS for name in UNASKED if name != "map" and (name, data) not in LONG]


@functools.cache
def losses(method: str, data: str) -> torch.Tensor:
    """The test NLL of each of five seeds."""
    found = pl.compare(data, {method: METHODS[method]}, progress=False)
    return torch.tensor([run["nll"] for run in found.runs[method]], dtype=torch.float64)


@pytest.mark.parametrize(("method", "data"), CASES)
def test_no_method_is_worse_than_map_by_more_than_two_standard_errors(method, data):
    # Of the difference: both are judged on the same test part, and what its examples are moves both alike.
    worse = losses(method, data) - losses("map", data)
    mean, error = worse.mean().item(), worse.std().item() / math.sqrt(len(worse))
    print(f"{data} {method}: {losses(method, data).mean():.4f}, against map {mean:+.4f} ± {error:.4f}")
    is_worse = mean > 2 * error
    # An exception that another machine's rounding brings within two standard errors is still one.
    assert not is_worse or (method, data) in EXCEPTIONS, f"{method} on {data}: {mean:+.4f} ± {error:.4f}"
