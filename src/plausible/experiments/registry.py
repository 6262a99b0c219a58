"""Which studies there are. Listing them imports none of them."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .study import Study


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A study's name, the file that has it as STUDY, its paper and what it is about in a line."""

    name: str
    module: str
    paper: str
    summary: str


ENTRIES = (
    Entry(
        name="ensemble-uci",
        module="ensemble_uci",
        paper="Lakshminarayanan, Pritzel & Blundell (2017)",
        summary="deep ensembles of five on UCI regression",
    ),
    Entry(
        name="swag-uci",
        module="swag_uci",
        paper="Maddox, Garipov, Izmailov, Vetrov & Wilson (2019)",
        summary="SWAG on UCI regression",
    ),
    Entry(
        name="laplace-calibration",
        module="laplace_calibration",
        paper="Daxberger, Kristiadi, Immer, Eschenhagen, Bauer & Hennig (2021)",
        summary="calibration of trained networks before and after Laplace",
    ),
    Entry(
        name="planets",
        module="planets",
        paper="Cranmer, Tamayo, Rein et al. (2021)",
        summary="instability times of planetary systems from summaries of their first orbits",
    ),
    Entry(
        name="planets-series",
        module="planet_series",
        paper="Cranmer, Tamayo, Rein et al. (2021)",
        summary="instability times of planetary systems from their first orbits",
    ),
    Entry(
        name="bayes-by-backprop-mnist",
        module="bayes_by_backprop_mnist",
        paper="Blundell, Cornebise, Kavukcuoglu & Wierstra (2015)",
        summary="a fully connected network on MNIST by Bayes by backprop",
    ),
    Entry(
        name="advi-priors",
        module="advi_priors",
        paper="Kucukelbir, Tran, Ranganath, Gelman & Blei (2017)",
        summary="priors and hyperpriors of a small network under ADVI on moons and circles",
    ),
    Entry(
        name="advi-mnist",
        module="advi_mnist",
        paper="Kucukelbir, Tran, Ranganath, Gelman & Blei (2017)",
        summary="a convolutional network on MNIST by ADVI, and which images it is unsure of",
    ),
    Entry(
        name="csgmcmc-25gaussians",
        module="csgmcmc_25gaussians",
        paper="Zhang, Li, Zhang, Chen & Wilson (2020)",
        summary="how many of 25 modes cyclical and plain samplers find",
    ),
    Entry(
        name="sghmc-variance-reduction",
        module="sghmc_variance_reduction",
        paper="Dubey, Reddi et al. (2016); Li, Zhang, Cheng et al. (2019)",
        summary="SGHMC with SVRG and SAGA at equal cost on UCI regression",
    ),
    Entry(
        name="sgld-mnist",
        module="sgld_mnist",
        paper="Welling & Teh (2011), and Li, Chen, Carlson & Carin (2016)",
        summary="SGLD, plain and preconditioned, on MNIST",
    ),
    Entry(
        name="mc-dropout-uci",
        module="mc_dropout_uci",
        paper="Gal & Ghahramani (2016)",
        summary="MC dropout on UCI regression",
    ),
    Entry(
        name="mc-dropout-mnist",
        module="mc_dropout_mnist",
        paper="Gal & Ghahramani (2016)",
        summary="a convolutional network on MNIST with dropout in training, and in prediction too",
    ),
    Entry(
        name="hmc-truth",
        module="hmc_truth",
        paper="Izmailov, Vikram, Hoffman & Wilson (2021)",
        summary="how close every method comes to long HMC on small networks",
    ),
    Entry(
        name="vogn-2d",
        module="vogn_2d",
        paper="Osawa, Swaroop, Jain, Eschenhagen, Turner, Yokota & Khan (2019)",
        summary="boundaries and entropy of small natural-gradient posteriors in the plane",
    ),
    Entry(
        name="vogn-cifar10",
        module="vogn_cifar10",
        paper="Osawa, Swaroop, Jain, Eschenhagen, Turner, Yokota & Khan (2019)",
        summary="natural-gradient methods and their rivals on CIFAR-10",
    ),
    Entry(
        name="vogn-momentum-batchnorm",
        module="vogn_momentum_batchnorm",
        paper="Osawa, Swaroop, Jain, Eschenhagen, Turner, Yokota & Khan (2019)",
        summary="what momentum and batch norm do for VOGN",
    ),
    Entry(
        name="vogn-continual",
        module="vogn_continual",
        paper="Osawa, Swaroop, Jain, Eschenhagen, Turner, Yokota & Khan (2019)",
        summary="ten tasks in turn, each posterior the next one's prior",
    ),
    Entry(
        name="ivon-fashion",
        module="ivon_fashion",
        paper="Shen, Daheim, Cong, Nickl et al. (2024)",
        summary="IVON beside AdamW on Fashion-MNIST",
    ),
)


def find(name: str) -> Entry:
    """A study by name."""
    for entry in ENTRIES:
        if entry.name == name.lower().replace("_", "-"):
            return entry
    raise ValueError(f"the study must be one of {', '.join(entry.name for entry in ENTRIES)}, got {name!r}")


def load(name: str) -> Study:
    """The study itself, which imports torch."""
    return importlib.import_module(f"{__package__}.{find(name).module}").STUDY
