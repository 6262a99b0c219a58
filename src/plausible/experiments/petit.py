"""The analytic survival time of three planets on circular orbits (Petit, Pichierri, Davies & Johansen, 2020)."""

import math

import numpy as np

_A = math.sqrt(38 / math.pi)  # strength of the network of three-planet resonances, the paper's constant


def petit_log10_time(period_ratios: np.ndarray, masses: np.ndarray, *, resonance_factor: float = 1.0) -> np.ndarray:
    """log10 of the orbits of the innermost planet that a system is expected to survive, infinite where it is stable.

    Zeroth-order resonances between three planets overlap where the planets are closer than a spacing δ_ov; there the periods
    diffuse until two planets meet a two-planet resonance. With ν the inner over the outer period of each pair, α = ν^⅔,
    η = ν₁₂(1 - ν₂₃)/(1 - ν₁₂ν₂₃), A = √(38/π):

        δ = (1 - α₁₂)(1 - α₂₃)/(2 - α₁₂ - α₂₃)
        M² = m₁m₃ + m₂m₃(η/α₁₂)² + m₁m₂(α₂₃(1 - η))²
        δ_ov⁴ = (4√2/3) A M (η(1 - η))^(3/2)
        T = (27/128) h(δ/δ_ov) / (A M ν₁₂ √(η(1 - η)))
        h(r) = (2√2/9) r⁶/(1 - r⁴) 10^√(-ln(1 - r⁴))

    Eccentricities, inclinations and angles do not enter, and nothing tells apart systems beyond the overlap.

    Args:
        period_ratios: (..., 2), outer over inner period of each pair of neighbours.
        masses: (..., 3), in units of the star's.
        resonance_factor: how many times more resonances there are than among three planets alone; the authors take 2 for
            five planets. It multiplies δ_ov⁴, and T by its square.
    """
    ratios, m = np.asarray(period_ratios, float), np.asarray(masses, float)
    if ratios.shape[-1:] != (2,) or m.shape[-1:] != (3,):
        raise ValueError(f"there must be 2 period ratios and 3 masses, got {ratios.shape} and {m.shape}")
    if not ((ratios > 1).all() and (m > 0).all()):
        raise ValueError(
            f"period ratios (outer over inner) must be above 1 and masses above 0, got at least {ratios.min()} and {m.min()}"
        )
    if not resonance_factor > 0:
        raise ValueError(f"resonance_factor must be above 0, got {resonance_factor}")
    nu12, nu23 = 1 / ratios[..., 0], 1 / ratios[..., 1]
    alpha12, alpha23 = nu12 ** (2 / 3), nu23 ** (2 / 3)
    eta = nu12 * (1 - nu23) / (1 - nu12 * nu23)
    m1, m2, m3 = m[..., 0], m[..., 1], m[..., 2]
    strength = _A * np.sqrt(m1 * m3 + m2 * m3 * (eta / alpha12) ** 2 + m1 * m2 * (alpha23 * (1 - eta)) ** 2)

    spacing = (1 - alpha12) * (1 - alpha23) / (2 - alpha12 - alpha23)
    overlap4 = resonance_factor * 4 * math.sqrt(2) / 3 * strength * (eta * (1 - eta)) ** 1.5
    filling = spacing**4 / overlap4  # (δ/δ_ov)⁴
    rate = strength * nu12 * np.sqrt(eta * (1 - eta)) / resonance_factor**2
    return np.log10(27 / 128) + log10_walk(filling) - np.log10(rate)


def log10_walk(filling: np.ndarray) -> np.ndarray:
    """log10 of h above, as a function of r⁴: how the walk slows down as resonances thin out; infinite from 1 on."""
    overlapping = np.asarray(filling) < 1
    r4 = np.where(overlapping, filling, 0.5)  # any number, so that no logarithm complains
    gap = -np.log1p(-r4)
    log10 = math.log10(2 * math.sqrt(2) / 9) + 1.5 * np.log10(r4) + gap / math.log(10) + np.sqrt(gap)
    return np.where(overlapping, log10, np.inf)
