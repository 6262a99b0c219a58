"""One input, one noisy output, and a gap in the data: HMC and a deep ensemble as fan charts.

python examples/regression.py [folder]      writes regression.png there
"""

import math
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # a file, no window

import matplotlib.pyplot as plt
import torch

import plausible as pl

NOISE = 0.2
LEVELS = (0.5, 0.8, 0.95)


def truth(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(2 * x) + 0.3 * x


def make_data(n: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(1)
    x = 2 * torch.rand(n, 1, generator=rng) - 1
    x = x.sign() * (0.6 + 1.6 * x.abs())  # nothing between -0.6 and 0.6, nothing beyond 2.2
    return x, truth(x) + NOISE * torch.randn(n, 1, generator=rng)


def main(folder: Path) -> None:
    x, y = make_data()
    torch.manual_seed(0)
    network = pl.networks.MLP(1, (16,), 1, activation="tanh")
    # The noise is unknown too: it gets a prior, and is inferred with the weights.
    noise = pl.hyperpriors.LogNormal(loc=math.log(0.2), scale=0.5)
    model = pl.BayesianModel(network, likelihood=pl.likelihoods.Normal(scale=noise), prior=pl.priors.Normal(scale=1.5))

    ensemble = pl.fit(model, (x, y), pl.DeepEnsemble(base=pl.MAP(learning_rate=0.03)), epochs=500)
    # A chain that starts at a good fit needs no time to find one. This one is short, for a quick picture, and its
    # diagnostics say so; a result to rely on takes thousands of steps and several chains (num_modes=4).
    chain = pl.fit(model, (x, y), pl.HMC(trajectory_length=0.2), steps=200, init=ensemble.components[0])
    posteriors = {"deep ensemble (5 networks)": ensemble, "HMC (one short chain)": chain}
    grid = torch.linspace(-3.5, 3.5, 200).unsqueeze(1)
    print(f"the chain: {chain.diagnostics().messages[0]}")
    figure, axes = plt.subplots(1, 2, figsize=(11, 4), sharex=True, sharey=True, layout="constrained")
    for axis, (name, posterior) in zip(axes, posteriors.items(), strict=True):
        scale = model.constrain(posterior.sample(200, seed=0))["likelihood.scale"].mean()
        predictive = posterior.predict(grid)
        inside = predictive.epistemic[grid[:, 0].abs() < 2.2].mean().sqrt()
        outside = predictive.epistemic[grid[:, 0].abs() > 2.7].mean().sqrt()
        print(f"{name}: noise {scale:.3f} (truly {NOISE})")
        print(f"  epistemic deviation {inside:.2f} among the data, {outside:.2f} far away")
        fan(axis, grid, predictive)
        axis.scatter(x.numpy(), y.numpy(), s=14, c="black", zorder=3, label="data")
        axis.plot(grid.numpy(), truth(grid).numpy(), "k--", linewidth=1, label="truth")
        axis.set(title=name, xlabel="x", ylim=(-3.5, 3.5))
    axes[0].set_ylabel("y")
    axes[0].legend(loc="lower left", fontsize="small")
    file = folder / "regression.png"
    figure.savefig(file, dpi=130)
    plt.close(figure)
    print(f"wrote {file}")


def fan(axis: plt.Axes, grid: torch.Tensor, predictive: pl.Predictive) -> None:
    """Central intervals of the mixture, wider ones fainter."""
    across = grid[:, 0].numpy()
    for level in sorted(LEVELS, reverse=True):
        lower, upper = predictive.interval(level)
        axis.fill_between(
            across,
            lower[:, 0].numpy(),
            upper[:, 0].numpy(),
            color="tab:blue",
            alpha=0.2,
            linewidth=0,
            label=f"{level:.0%} interval",
        )
    axis.plot(across, predictive.mean[:, 0].numpy(), color="tab:blue", label="mean")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path())
