"""How long will this planetary system last? Ten SWAG modes, trained on 14,471 systems, say with what probability.

pip install "plausible[planets]"
python examples/planets.py [folder]      writes planets.png there

Put your own system into SYSTEM. Its first 10⁴ orbits are integrated, which takes a fraction of a second; the rest of the billion
in question are not.
"""

import sys
import time
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # a file, no window

import matplotlib.pyplot as plt
import torch

import plausible as pl
from plausible.experiments.planet_network import INPUTS, SeriesNetwork, series_inputs

POSTERIOR = Path(__file__).with_name("planets.safetensors")
EARTH = 3.0e-6  # in suns
YEAR = 365.25
SYSTEM = {
    "masses": [5 * EARTH, 4 * EARTH, 6 * EARTH],
    "periods": [10.0, 14.2, 19.8],  # days
    "eccentricities": [0.03, 0.02, 0.04],
    "inclinations": [0.01, 0.02, 0.01],
    "longitudes_of_pericentre": [0.3, 2.0, 4.1],
    "longitudes_of_node": [0.0, 1.0, 2.5],
    "true_anomalies": [1.0, 3.0, 5.0],
}


def main(folder: Path) -> None:
    posterior = pl.load(POSTERIOR, SeriesNetwork())
    posterior.predict(torch.zeros(1, 100, INPUTS), num_samples=10)  # the first call loads parts of torch
    start = time.perf_counter()
    series = pl.datasets.planet_series(pl.datasets.own_planets(**SYSTEM), cache=folder / "planet-cache")
    if series.met[0] < torch.inf:
        print(f"two planets meet after {series.met[0]:,.0f} orbits already: nothing is left to predict")
        return
    integrated = time.perf_counter()
    predictive = posterior.predict(series_inputs(series), num_samples=100)
    low, median, high = (float(predictive.quantile(q)) for q in (0.16, 0.5, 0.84))
    survives = 1 - float(predictive.cdf(torch.tensor([[9.0]])))
    done = time.perf_counter()
    years = SYSTEM["periods"][0] / YEAR
    print(f"integrated 10⁴ orbits in {integrated - start:.2f} s, predicted in {done - integrated:.2f} s")
    print(f"log10 of orbits until two planets meet: {median:.1f}, with 68 % probability {low:.1f} to {high:.1f}")
    print(f"in years: {10**median * years:.1e}, {10**low * years:.1e} to {10**high * years:.1e}")
    print(f"probability of outliving 10⁹ orbits ({1e9 * years / 1e6:.0f} million years): {survives:.0%}")
    noise, weights = (float(part.sqrt()) for part in (predictive.aleatoric, predictive.epistemic))
    print(
        f"deviation: {noise:.2f} from chaos and what the inputs do not say, {weights:.2f} from not knowing the weights"
    )
    file = folder / "planets.png"
    draw(series, predictive, (low, median, high), file)
    print(f"wrote {file}")


def draw(series: pl.datasets.PlanetSeries, predictive: pl.Predictive, quantiles: tuple, file: Path) -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 3.9), layout="constrained")
    elements = series.values[0].reshape(series.values.shape[1], 3, -1)
    orbits = torch.arange(1, len(elements) + 1) * 100
    for planet, colour in enumerate(("tab:blue", "tab:orange", "tab:green")):
        left.plot(orbits, elements[:, planet, 1], color=colour, linewidth=1, label=f"planet {planet + 1}")
    left.set(xlabel="orbits of the innermost planet", ylabel="eccentricity", title="What is integrated")
    left.legend(fontsize="small")

    grid = torch.linspace(4, max(12.0, quantiles[2] + 1), 400)
    below = predictive.cdf(grid[:, None])[:, 0]
    density = torch.gradient(below, spacing=(grid,))[0]
    right.fill_between(
        grid, density, where=(grid < 9).numpy(), color="tab:blue", alpha=0.35, label="meets within 10⁹ orbits"
    )
    right.fill_between(grid, density, where=(grid >= 9).numpy(), color="tab:green", alpha=0.35, label="lasts longer")
    right.axvline(quantiles[1], color="black", linewidth=1, label="median")
    right.set(xlabel="log₁₀ of orbits until two planets meet", ylabel="probability density", title="What is predicted")
    right.set_ylim(bottom=0)
    right.legend(fontsize="small")
    figure.savefig(file, dpi=130)
    plt.close(figure)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path())
