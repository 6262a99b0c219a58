"""The larger networks under `pl.fit`."""

import logging

import pytest
import torch
from torch import nn

import plausible as pl


def scenes(n=6, size=9):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 1, size, size, generator=generator, dtype=torch.float64)
    y = (x[:, 0] > 0).long()
    y[:, 0, 0] = 2  # a pixel without a label
    return x, y


def segnet(**options):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return pl.networks.SegNet(2, 1, "group", width=4, stages=(1, 1), **options).double()


def model(network):
    return pl.BayesianModel(network, likelihood=pl.likelihoods.Categorical(ignore_index=2))


@pytest.mark.parametrize("dropout_at", ["none", "central"])
def test_modes_of_segnet_are_vectorised_and_agree_with_one_after_another(dropout_at, caplog):
    fits = [
        pl.fit(
            model(segnet(dropout_at=dropout_at)),
            scenes(),
            pl.MAP(),
            steps=5,
            num_modes=2,
            vectorise=vectorise,
            compile=False,
            progress=False,
        )
        for vectorise in (True, False)
    ]
    assert "cannot be vectorised" not in caplog.text
    for together, alone in zip(fits[0].components, fits[1].components, strict=True):
        for name, weight in together.mean.items():
            torch.testing.assert_close(weight, alone.mean[name], rtol=1e-7, atol=1e-9)


def test_segnet_learns_and_leaves_unlabelled_pixels_out():
    generator = torch.Generator().manual_seed(0)
    blocks = torch.randint(0, 2, (8, 3, 3), generator=generator)
    y = blocks.repeat_interleave(4, 1).repeat_interleave(4, 2)
    x = y[:, None] + 0.3 * torch.randn(8, 1, 12, 12, generator=generator, dtype=torch.float64)
    labelled = torch.rand(y.shape, generator=generator) < 0.5
    method = pl.MAP(learning_rate=0.01)
    fitted = pl.fit(model(segnet(dropout_at="none")), (x, y.where(labelled, 2)), method, steps=100, progress=False)
    right = fitted.predict(x).probs.argmax(1) == y
    assert right[labelled].double().mean() > 0.95
    assert right[~labelled].double().mean() > 0.95  # had "no label" counted as an answer, these would be wrong


class TorchUnpooling(nn.Module):
    """Torch's own unpooling, for which vmap has no rule."""

    def __init__(self):
        super().__init__()
        self.into, self.out = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 2, 3, padding=1)

    def forward(self, x):
        h, places = nn.functional.max_pool2d(self.into(x), 2, return_indices=True)
        return self.out(nn.functional.max_unpool2d(h, places, 2))


def test_torchs_own_unpooling_runs_one_mode_after_another(caplog):
    with caplog.at_level(logging.WARNING, "plausible"):
        posterior = pl.fit(
            model(TorchUnpooling().double()),
            scenes(size=8),
            pl.MAP(),
            steps=3,
            num_modes=2,
            vectorise=True,
            progress=False,
        )
    assert "modes run one after another, since this network cannot be vectorised" in caplog.text
    assert len(posterior.components) == 2


@pytest.mark.parametrize(
    ("network", "size"),
    [
        (lambda: pl.networks.NIN(2, 1), 8),
        (lambda: pl.networks.VGG16(2, 1, width=4), 32),
        (lambda: pl.networks.PreResNet20(2, 1, width=4), 8),
        (lambda: pl.networks.WideResNet(10, 1, 2, 1, dropout=0.1), 8),
    ],
)
def test_a_fitted_network_is_saved_and_loaded_by_its_name(network, size, tmp_path):
    x = torch.randn(8, 1, size, size, generator=torch.Generator().manual_seed(0))
    y = (x.mean((1, 2, 3)) > 0).long()
    fitted = pl.fit(
        pl.BayesianModel(network(), likelihood=pl.likelihoods.Categorical()), (x, y), pl.MAP(), steps=2, progress=False
    )
    fitted.save(tmp_path / "network.plausible")
    loaded = pl.load(tmp_path / "network.plausible")
    assert torch.equal(loaded.predict(x).probs, fitted.predict(x).probs)
