"""What Osawa et al. (2019) print of CIFAR-10: table 1, strangers told apart, and the scorecard."""

from __future__ import annotations

from .study import Published


def _published(
    train: float, accuracy: float, nll: float, epochs: int, seconds: float, ece: float, auroc: float
) -> Published:
    values = {"train": train, "accuracy": accuracy, "nll": nll, "seconds": seconds, "ece": ece, "auroc": auroc}
    return Published(values=values, epochs=epochs)


PUBLISHED = {
    "lenet5-adam": _published(71.98, 67.67, 0.937, 210, 6.96, 0.021, 0.794),
    "lenet5-bbb": _published(66.84, 64.61, 1.018, 800, 11.43, 0.045, 0.784),
    "lenet5-mc-dropout": _published(68.41, 67.65, 0.99, 210, 6.95, 0.087, 0.797),
    "lenet5-vogn": _published(70.79, 67.32, 0.938, 210, 18.33, 0.046, 0.800),
    "alexnet-plain-adam": _published(100.0, 67.94, 2.83, 161, 3.12, 0.262, 0.793),
    "alexnet-plain-mc-dropout": _published(97.56, 72.20, 1.077, 160, 3.25, 0.140, 0.818),
    "alexnet-plain-vogn": _published(79.07, 69.03, 0.93, 160, 9.98, 0.024, 0.796),
    "alexnet-adam": _published(97.92, 73.59, 1.480, 161, 3.08, 0.262, 0.793),
    "alexnet-mc-dropout": _published(80.65, 77.04, 0.667, 160, 3.20, 0.114, 0.828),
    "alexnet-vogn": _published(81.15, 75.48, 0.703, 160, 10.02, 0.016, 0.832),
    "resnet18-adam": _published(97.74, 86.00, 0.55, 160, 11.97, 0.082, 0.877),
    "resnet18-mc-dropout": _published(88.23, 82.85, 0.51, 161, 12.51, 0.166, 0.768),
    "resnet18-vogn": _published(91.62, 84.27, 0.477, 161, 53.14, 0.040, 0.876),
}
# ResNet-18: FPR95 and AUROC with which the entropy of a prediction tells SVHN from CIFAR-10.
STRANGERS = {"resnet18-vogn": (0.82, 0.80), "resnet18-adam": (0.88, 0.70), "resnet18-mc-dropout": (0.88, 0.80)}
# Cells of NLL, ECE and AUROC in which VOGN is best or tied, and of how many.
SCORECARD = (10, 15)
