"""What only a GPU can show. CI has none, so these run by hand there: `PYTHONPATH=src python -m pytest tests/test_gpu.py`."""

import pytest
import torch
from torch import nn

import plausible as pl

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine")


def problem(count=600, seed=0):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 1, 28, 28, generator=g)
    return x, (x.mean((1, 2, 3)) * 28 > 0).long()


def lenet():
    torch.manual_seed(1)
    return pl.networks.LeNet5(classes=2)


def model(network=None, **options):
    return pl.BayesianModel(network or lenet(), likelihood=pl.likelihoods.Categorical(), **options)


def equal(a, b):
    return all(torch.equal(a[k], b[k]) for k in a)


@pytest.mark.parametrize(
    "method",
    [
        pl.MAP(),
        pl.MAP(optimizer="sgd", learning_rate=0.01),
        pl.SWAG(rank=3, snapshots=5),
        pl.VOGN(num_samples=4),  # whose draws have branches of the graph each
        pl.VOGN(num_samples=2, num_parts=4),
        pl.IVON(num_samples=4),
    ],
)
@pytest.mark.parametrize("modes", [1, 3])
def test_a_captured_run_agrees_with_an_eager_one(method, modes, monkeypatch):
    from plausible.core import execution

    x, y = problem()
    captured = pl.fit(model(lenet().double()), (x.double(), y), method, steps=40, num_modes=modes, progress=False)
    monkeypatch.setattr(execution, "CAPTURE_FROM", 10**9)
    eager = pl.fit(model(lenet().double()), (x.double(), y), method, steps=40, num_modes=modes, progress=False)
    for a, b in zip(captured.components, eager.components, strict=True):
        for k in a.mean:
            torch.testing.assert_close(a.mean[k], b.mean[k], rtol=1e-6, atol=1e-8)


def test_the_gpu_agrees_with_the_cpu():
    x, y = problem()
    gpu = pl.fit(model(lenet().double()), (x.double(), y), pl.MAP(), steps=30, progress=False)
    cpu = pl.fit(model(lenet().double()), (x.double(), y), pl.MAP(), steps=30, device="cpu", progress=False)
    assert next(iter(gpu.mean.values())).is_cuda
    for k in cpu.mean:
        torch.testing.assert_close(gpu.mean[k].cpu(), cpu.mean[k], rtol=1e-6, atol=1e-8)


def test_saved_on_the_gpu_it_predicts_on_the_cpu_and_answers_where_the_inputs_are(tmp_path):
    posterior = pl.fit(model(), problem(), pl.SWAG(rank=3, snapshots=5), steps=60, progress=False)
    x = problem(50, seed=2)[0]
    posterior.save(tmp_path / "a.plausible")
    loaded = pl.load(tmp_path / "a.plausible", lenet())
    on_gpu, on_cpu = posterior.predict(x).mean, loaded.predict(x).mean
    assert on_gpu.device.type == "cpu" and posterior.predict(x.cuda()).mean.is_cuda
    torch.testing.assert_close(on_gpu, on_cpu, rtol=1e-3, atol=1e-4)
    back = pl.load(tmp_path / "a.plausible", lenet(), device="cuda").predict(x).mean
    torch.testing.assert_close(back, on_gpu, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("modes", [1, 3])
def test_resuming_is_bit_exact_with_deterministic_algorithms(modes, tmp_path, monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    options = dict(steps=60, num_modes=modes, deterministic=True, progress=False)
    whole = pl.fit(model(), problem(), pl.MAP(), **options)
    path = pl.Checkpoint(tmp_path / "c.plausible", every_steps=7)

    def interrupt(event):
        if event["step"] == 33:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        pl.fit(model(), problem(), pl.MAP(), checkpoint=path, callbacks=[interrupt], **options)
    resumed = pl.fit(model(), problem(), pl.MAP(), checkpoint=path, resume=True, **options)
    assert all(equal(a.mean, b.mean) for a, b in zip(whole.components, resumed.components, strict=True))


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_mixed_precision_learns(precision):
    x, y = problem(2000)
    posterior = pl.fit(model(), (x, y), pl.MAP(), steps=200, precision=precision, progress=False)
    assert pl.metrics.accuracy(posterior.predict(x).probs, y) > 0.8


def test_batch_norm_dropout_and_augmentation_run_captured(caplog):
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(1, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(128, 2),
    )
    x, y = problem(1000)
    before = torch.cuda.get_rng_state()
    flip = lambda t: torch.where(torch.rand(t.shape[0], 1, 1, 1, device=t.device) < 0.5, t.flip(-1), t)  # noqa: E731
    posterior = pl.fit(
        model(network), (x, y), pl.SWAG(rank=3, snapshots=5), steps=100, num_modes=2, augment=flip, progress=False
    )
    assert torch.equal(before, torch.cuda.get_rng_state())
    assert not caplog.records, [r.getMessage() for r in caplog.records]
    assert torch.isfinite(posterior.predict(x[:20]).probs).all()


def test_draws_side_by_side_have_the_dropout_masks_of_draws_in_turn(caplog, monkeypatch):
    from plausible.core import execution

    def run():
        torch.manual_seed(0)
        layers = nn.Flatten(), nn.Linear(784, 20), nn.ReLU(), nn.Dropout(0.5), nn.Linear(20, 2)
        x, y = problem()
        return pl.fit(
            model(nn.Sequential(*layers).double()), (x.double(), y), pl.IVON(num_samples=3), steps=40, progress=False
        )

    captured = run()
    assert not caplog.records, [r.getMessage() for r in caplog.records]
    monkeypatch.setattr(execution, "CAPTURE_FROM", 10**9)
    eager = run()
    for k, w in eager.mean.items():
        torch.testing.assert_close(captured.mean[k], w, rtol=1e-6, atol=1e-8)


def test_hmc_on_the_gpu_finds_a_correlated_normal():
    covariance = torch.tensor([[1.0, 0.9], [0.9, 1.0]], dtype=torch.float64, device="cuda")
    precision = torch.linalg.inv(covariance)
    density = pl.LogDensity(lambda p: -0.5 * p["w"] @ precision @ p["w"], {"w": torch.zeros(2, dtype=torch.float64)})
    posterior = pl.fit(density, None, pl.HMC(), steps=500, num_modes=64, progress=False)
    draws = torch.cat([c.draws["w"] for c in posterior.components])
    assert torch.allclose(draws.T.cov(), covariance, atol=0.06)


def test_data_from_a_loader_and_data_on_the_device_learn_alike():
    x, y = problem(512)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=100, shuffle=True)
    posterior = pl.fit(model(), loader, pl.MAP(), epochs=20, progress=False)
    assert pl.metrics.accuracy(posterior.predict(x).probs, y) > 0.8


@pytest.mark.parametrize(
    "structure", ["diagonal", "kronecker", "low-rank"]
)  # "full" first walks to the top its own way
def test_laplace_on_a_gpu_is_laplace_on_a_cpu(structure):
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Conv2d(1, 3, 3, stride=2), torch.nn.GroupNorm(1, 3), torch.nn.Tanh(), torch.nn.Flatten(), torch.nn.Linear(27, 4)
    ).double()  # fmt: skip
    x, y = torch.randn(50, 1, 7, 7, dtype=torch.float64), torch.randint(0, 4, (50,))
    model = pl.BayesianModel(network, pl.likelihoods.Categorical())
    method = pl.Laplace(structure=structure)
    found = [
        pl.fit(model, (x, y), method, init="network", epochs=0, device=device, progress=False)
        for device in ("cuda", "cpu")
    ]
    values = [p.evidence().log_marginal_likelihood.cpu() for p in found]
    assert torch.allclose(values[0].double(), values[1].double(), rtol=1e-8)
    probs = [p.predict(x, num_samples=256).probs for p in found]
    # Eigenvectors have signs that libraries choose, so draws differ: 0.5 / sqrt(256) is a standard error at the most.
    assert torch.allclose(*probs, atol=5 * 0.5 / 256**0.5)


def test_per_example_squares_on_a_gpu_are_those_on_a_cpu():
    from plausible.curvature import second_moments

    torch.manual_seed(0)
    network = pl.networks.ResNet20(norm="group").double()
    model = pl.BayesianModel(network, pl.likelihoods.Categorical()).bound(num_data=8.0)
    x, y = torch.randn(8, 3, 32, 32, dtype=torch.float64), torch.randint(0, 10, (8,))
    on_cpu = second_moments(model, model.start, (x, y, None))
    on_gpu = second_moments(model, {k: v.cuda() for k, v in model.start.items()}, (x.cuda(), y.cuda(), None))
    for name, value in on_cpu.items():
        assert torch.allclose(on_gpu[name].cpu(), value, rtol=1e-8, atol=1e-12 * value.abs().max().item()), name
