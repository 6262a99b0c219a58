"""Your own training loop, with a Bayesian optimiser in the place of Adam: three lines change, and a posterior comes out.

python examples/optimiser.py
"""

import tempfile
from pathlib import Path

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import plausible as pl

EPOCHS = 15
FORGETTING = 5  # times that the curvature of the start is divided by e


def loop(network: torch.nn.Module, loader: DataLoader, num_data: int) -> pl.optim.IVON:
    """The usual loop, with a schedule and with clipped gradients."""
    betas = (0.9, 1 - FORGETTING / (EPOCHS * len(loader)))
    optimizer = pl.optim.IVON(
        network, num_data=num_data, betas=betas
    )  # instead of torch.optim.Adam(network.parameters())
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=EPOCHS)
    for _ in range(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            with optimizer.sampled():  # a draw of the weights; the mean is back at the end
                F.cross_entropy(network(x), y).backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), 10.0)
            optimizer.step()
        schedule.step()
    return optimizer


def main() -> None:
    data = pl.datasets.digits()
    torch.manual_seed(0)
    network = pl.networks.MLP((1, 8, 8), (64,), 10)
    loader = DataLoader(TensorDataset(*data.train), batch_size=64, shuffle=True)
    optimizer = loop(network, loader, len(data.x_train))

    model = pl.BayesianModel(network, likelihood=pl.likelihoods.Categorical())
    posterior = optimizer.posterior(model)
    with torch.no_grad():
        mean = network(data.x_test).softmax(1)
    predictive = posterior.predict(data.x_test)
    for name, probs in {"at the mean": mean, "averaged": predictive.probs}.items():
        accuracy, nll = pl.metrics.accuracy(probs, data.y_test), pl.metrics.nll(probs, data.y_test)
        print(f"{name}: accuracy {accuracy:.3f}, NLL {nll:.3f}")
    doubtful = predictive.epistemic.topk(3).indices.tolist()
    print(f"the networks disagree most about test images {doubtful}, whose labels are {data.y_test[doubtful].tolist()}")

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "digits.plausible"
        posterior.save(file)
        again = pl.load(file, network).predict(data.x_test)
        print(f"saved, loaded, same predictions: {torch.equal(again.probs, predictive.probs)}")


if __name__ == "__main__":
    main()
