"""How deep NumPyro's trees are at a given step size: the program that wrote numpyro_trees.json.

    python -m venv /tmp/numpyro && /tmp/numpyro/bin/pip install numpyro
    /tmp/numpyro/bin/python tests/inference/mcmc/numpyro_trees.py tests/inference/mcmc/numpyro_trees.json

Identity mass, no adaptation, every chain from a standard normal point, 100 transitions dropped.
"""

import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro.infer import MCMC, NUTS

CHAINS, DROPPED, KEPT = 256, 100, 200


def correlated():
    precision = np.linalg.inv([[1.0, 0.75], [0.75, 1.0]])
    return lambda x: 0.5 * x @ jnp.asarray(precision) @ x


def ill_conditioned():
    """Variances from 1 to 100 along axes that a reflection at (1, ..., 1) turns."""
    reflection = np.eye(10) - 0.2 * np.ones((10, 10))
    precision = reflection @ np.diag(np.logspace(0, -2, 10)) @ reflection
    return lambda x: 0.5 * x @ jnp.asarray(precision) @ x


def student_t():
    return lambda x: 0.5 * (5.0 + 3.0) * jnp.log1p((x @ x) / 5.0)


TARGETS = {
    "correlated": (correlated, 2, 0.5),
    "ill_conditioned": (ill_conditioned, 10, 0.8),
    "student_t": (student_t, 3, 0.7),
}


def main(path: str) -> None:
    numpyro.enable_x64()
    found = {"numpyro": numpyro.__version__, "jax": jax.__version__, "chains": CHAINS, "draws": KEPT, "targets": {}}
    for name, (make, size, step_size) in TARGETS.items():
        kernel = NUTS(
            potential_fn=make(), step_size=step_size, adapt_step_size=False, adapt_mass_matrix=False, max_tree_depth=10
        )
        mcmc = MCMC(
            kernel,
            num_warmup=DROPPED,
            num_samples=KEPT,
            num_chains=CHAINS,
            chain_method="vectorized",
            progress_bar=False,
        )
        starts = jax.random.normal(jax.random.PRNGKey(1), (CHAINS, size))
        mcmc.run(jax.random.PRNGKey(0), init_params=starts, extra_fields=("num_steps", "accept_prob"))
        fields = {k: np.asarray(v, dtype=float) for k, v in mcmc.get_extra_fields(group_by_chain=True).items()}
        row = {"step_size": step_size, "unknowns": size}
        fields["depth"] = np.ceil(np.log2(fields["num_steps"] + 1))
        for field, name_here in (("depth", "depth"), ("num_steps", "leapfrogs"), ("accept_prob", "acceptance")):
            by_chain = fields[field].mean(1)
            row[name_here] = float(by_chain.mean())
            row[f"{name_here}_error"] = float(by_chain.std(ddof=1) / CHAINS**0.5)
        found["targets"][name] = row
        print(name, row, flush=True)
    Path(path).write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
