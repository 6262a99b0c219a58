"""A network you trained yourself, with your own loop, becomes a posterior: SWAG goes on from its weights.

python examples/pretrained.py
"""

import tempfile
from pathlib import Path

import torch
from torch.nn import functional as F

import plausible as pl


def train(network: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    """Any loop; this one is the usual."""
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    for _ in range(150):
        optimizer.zero_grad()
        F.cross_entropy(network(x), y).backward()
        optimizer.step()


def main() -> None:
    data = pl.datasets.digits()
    torch.manual_seed(0)
    network = pl.networks.MLP((1, 8, 8), (64,), 10)
    train(network, *data.train)
    before = [weight.clone() for weight in network.parameters()]

    model = pl.BayesianModel(network, likelihood=pl.likelihoods.Categorical())
    # init=None starts the first (here the only) mode at the network's own weights. From a trained network snapshots
    # can begin at once, and they stay near it if the rate is low.
    swag = pl.SWAG(start=0.2, base=pl.MAP(optimizer="sgd", learning_rate=0.02))
    posterior = pl.fit(model, data.train, swag, epochs=30)
    assert all(torch.equal(a, b) for a, b in zip(before, network.parameters(), strict=True)), (
        "your network is untouched"
    )

    with torch.no_grad():
        point = network(data.x_test).softmax(1)
    predictive = posterior.predict(data.x_test)
    for name, probs in {"the network alone": point, "SWAG around it": predictive.probs}.items():
        accuracy, nll = pl.metrics.accuracy(probs, data.y_test), pl.metrics.nll(probs, data.y_test)
        print(f"{name}: accuracy {accuracy:.3f}, NLL {nll:.3f}")
    doubtful = predictive.epistemic.topk(3).indices.tolist()
    print(f"the networks disagree most about test images {doubtful}, whose labels are {data.y_test[doubtful].tolist()}")

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "digits.plausible"
        posterior.save(file)
        again = pl.load(file, network).predict(data.x_test)
        same = torch.equal(again.probs, predictive.probs)
        print(f"saved ({file.stat().st_size:,} bytes), loaded, same predictions: {same}")


if __name__ == "__main__":
    main()
