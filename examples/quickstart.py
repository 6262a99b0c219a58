"""Two moons with MultiSWAG: predictions, their quality, and a picture of what the posterior knows and does not know.

python examples/quickstart.py [folder]      writes moons.png there
"""

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # a file, no window

import matplotlib.pyplot as plt
import torch
from rich.console import Console
from rich.table import Table

import plausible as pl

GRID = 120  # points a side of the maps


def main(folder: Path) -> None:
    data = pl.datasets.moons(n=200)
    torch.manual_seed(0)
    network = pl.networks.MLP(2, (50, 50), 2)
    model = pl.BayesianModel(network, likelihood=pl.likelihoods.Categorical(), prior=pl.priors.Normal(scale=2.0))

    swag = pl.SWAG(base=pl.MAP(optimizer="sgd", learning_rate=0.1))
    one = pl.fit(model, data.train, pl.MAP(learning_rate=0.01), epochs=200, batch_size=40)
    many = pl.fit(model, data.train, pl.MultiSWAG(modes=5, base=swag), epochs=200, batch_size=40)

    table = Table("", "accuracy", "NLL", "ECE", title=f"{len(data.x_test)} test examples")
    for name, posterior in {"one network (MAP)": one, "MultiSWAG": many}.items():
        probs = posterior.predict(data.x_test).probs
        scores = (measure(probs, data.y_test) for measure in (pl.metrics.accuracy, pl.metrics.nll, pl.metrics.ece))
        table.add_row(name, *(f"{score:.3f}" for score in scores))
    Console().print(table)

    file = folder / "moons.png"
    draw(data, many, file)
    print(f"wrote {file}")


def draw(data: pl.datasets.Dataset, posterior: pl.Posterior, file: Path) -> None:
    side = torch.linspace(-4, 4, GRID)
    down, across = torch.meshgrid(side, side, indexing="ij")
    points = torch.stack([across.flatten(), down.flatten()], dim=1)
    predictive = posterior.predict(points)
    probability = predictive.probs[:, 1]
    maps = {
        "probability of the lower moon": (probability, "RdBu_r", 1.0),
        "aleatoric: the classes overlap (nats)": (predictive.aleatoric, "viridis", None),
        "epistemic: the networks disagree (nats)": (predictive.epistemic, "viridis", None),
    }
    square = lambda values: values.reshape(GRID, GRID).numpy()  # noqa: E731
    ticks = side.numpy()
    figure, axes = plt.subplots(1, 3, figsize=(13, 4), sharey=True, layout="constrained")
    for axis, (title, (values, colours, high)) in zip(axes, maps.items(), strict=True):
        image = axis.pcolormesh(ticks, ticks, square(values), cmap=colours, vmin=0.0, vmax=high)
        figure.colorbar(image, ax=axis, shrink=0.9)
        axis.contour(ticks, ticks, square(probability), levels=[0.5], colors="black", linewidths=1.5)
        for label, marker, colour in ((0, "o", "tab:blue"), (1, "^", "tab:red")):
            inside = data.x_train[data.y_train == label]
            axis.scatter(
                *inside.T.numpy(),
                s=10,
                marker=marker,
                c=colour,
                edgecolors="white",
                linewidths=0.4,
                label=data.classes[label],
            )
        axis.set(title=title, xlabel="$x_1$", aspect="equal", xlim=(-4, 4), ylim=(-4, 4))
    axes[0].set_ylabel("$x_2$")
    axes[0].legend(loc="lower left", framealpha=0.9)
    figure.savefig(file, dpi=130)
    plt.close(figure)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path())
