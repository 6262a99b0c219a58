"""What a system's age says about its orbits: draws of uncertain elements of Kepler-431, weighted by P(no meeting in 10⁹ orbits).

pip install "plausible[planets]"
python examples/planets_constrain.py [folder] [draws]      writes planets_constrain.png there

Periods are measured well, masses and eccentricities hardly. A configuration that would have fallen apart long ago is not what is
out there, so each draw counts as much as it is likely to last. Masses are plausible for planets of the measured radii.
"""

import math
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # a file, no window

import matplotlib.pyplot as plt
import torch

import plausible as pl
from plausible.experiments.planet_network import SeriesNetwork, series_inputs

POSTERIOR = Path(__file__).with_name("planets.safetensors")
EARTH, STAR = 3.0e-6, 1.07  # in suns
PERIODS = (6.803, 8.703, 11.922)  # days
MASSES = (0.4, 0.3, 1.4)  # Earths, each uncertain by a factor of two
LARGEST_ECCENTRICITY = 0.1


def draw_systems(count: int) -> pl.datasets.PlanetSystems:
    """What is known before anybody thinks of stability."""
    rng = torch.Generator().manual_seed(0)
    masses = torch.tensor(MASSES) * EARTH / STAR * torch.exp(math.log(2) * torch.randn(count, 3, generator=rng))

    def uniform(largest: float) -> torch.Tensor:
        return largest * torch.rand(count, 3, generator=rng)

    return pl.datasets.own_planets(
        masses,
        torch.tensor(PERIODS),
        eccentricities=uniform(LARGEST_ECCENTRICITY),
        inclinations=uniform(0.03),
        longitudes_of_pericentre=uniform(2 * math.pi),
        longitudes_of_node=uniform(2 * math.pi),
        true_anomalies=uniform(2 * math.pi),
    )


def main(folder: Path, count: int = 60) -> None:
    systems = draw_systems(count)
    series = pl.datasets.planet_series(systems, cache=folder / "planet-cache")
    predictive = pl.load(POSTERIOR, SeriesNetwork()).predict(series_inputs(series), num_samples=50)
    survives = 1 - predictive.cdf(torch.full((count, 1), 9.0))[:, 0]
    survives[series.met.isfinite()] = 0.0  # they met in the short integration: nothing is left to predict
    weights = survives / survives.sum()
    early = int(series.met.isfinite().sum())
    print(
        f"{early} of {count} draws meet within 10⁴ orbits; they count as {1 / weights.square().sum():.0f} equal draws now"
    )
    eccentricities = systems.elements[:, :, 2].float()
    for planet in range(3):
        before, after = eccentricities[:, planet].mean(), (weights * eccentricities[:, planet]).sum()
        print(f"eccentricity of planet {planet + 1}: mean {before:.3f} before, {after:.3f} after")
    file = folder / "planets_constrain.png"
    draw(eccentricities, weights, survives, file)
    print(f"wrote {file}")


def draw(eccentricities: torch.Tensor, weights: torch.Tensor, survives: torch.Tensor, file: Path) -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 4.0), layout="constrained")
    for planet, colour in enumerate(("tab:blue", "tab:orange", "tab:green")):
        values, order = eccentricities[:, planet].sort()
        share = torch.arange(1, len(values) + 1) / len(values)
        left.step(values, share, color=colour, linestyle=":", linewidth=1.2, where="post")
        left.step(values, weights[order].cumsum(0), color=colour, where="post", label=f"planet {planet + 1}")
    left.plot([], [], "k:", label="before")
    left.plot([], [], "k-", label="after")
    left.set(xlabel="eccentricity", ylabel="share of draws below", title="What stability says of each orbit")
    left.legend(fontsize="small", loc="lower right")
    dots = right.scatter(
        eccentricities[:, 0],
        eccentricities[:, 1],
        c=survives,
        cmap="viridis",
        vmin=0,
        vmax=1,
        s=28,
        edgecolor="grey",
        linewidth=0.4,
    )
    figure.colorbar(dots, ax=right, label="P(T > 10⁹ orbits)")
    right.set(xlabel="eccentricity of planet 1", ylabel="eccentricity of planet 2", title="Which draws last")
    figure.savefig(file, dpi=130)
    plt.close(figure)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(), *map(int, sys.argv[2:3]))
