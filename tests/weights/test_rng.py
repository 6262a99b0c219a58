"""Random numbers are a function of (seed, mode, step, call), and they are good ones."""

import math

import numpy as np
import pytest
import torch
from scipy import special, stats

from plausible.weights.rng import Keys, forked, generator, permutation, run_key, run_keys
from plausible.weights.threefry import as_int32, threefry, threefry_int

STEP = torch.tensor(5)


def reference_threefry(key: tuple[int, int], counter: tuple[int, int]) -> tuple[int, int]:
    """Threefry-2x32-20 as the paper states it: one rotation constant per round, a key word pair every fourth round."""
    modulus = 2**32
    words = [*key, 0x1BD11BDA ^ key[0] ^ key[1]]
    x, y = (counter[0] + words[0]) % modulus, (counter[1] + words[1]) % modulus
    for r in range(20):
        bits = (13, 15, 26, 6, 17, 29, 16, 24)[r % 8]
        x = (x + y) % modulus
        y = (y * 2**bits % modulus + y // 2 ** (32 - bits)) ^ x
        if r % 4 == 3:
            s = r // 4 + 1
            x, y = (x + words[s % 3]) % modulus, (y + words[(s + 1) % 3] + s) % modulus
    return x, y


def unsigned(words) -> tuple[int, ...]:
    return tuple(int(w) % 2**32 for w in words)


def words_of(values) -> tuple[torch.Tensor, ...]:
    return tuple(torch.tensor(as_int32(v), dtype=torch.int32) for v in values)


def normals(n: int, *, seed: int = 0, mode: int = 0, step: int = 0, call: int = 0, dtype=torch.float32) -> torch.Tensor:
    return Keys(run_key(seed, mode), torch.tensor(step), call).normal(n, dtype)


@pytest.mark.parametrize(
    ("key", "counter", "answer"),
    [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF,) * 2, (0xFFFFFFFF,) * 2, (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_threefry_gives_the_published_answers(key, counter, answer):
    assert unsigned(threefry(words_of(key), words_of(counter)[0], counter[1])) == answer
    packed = threefry_int(key[0] | key[1] << 32, counter[0] | counter[1] << 32)
    assert (packed % 2**32, packed >> 32) == answer
    assert reference_threefry(key, counter) == answer


def test_threefry_agrees_with_the_reference_on_random_words():
    random = np.random.default_rng(0)
    for k0, k1, high in random.integers(0, 2**32, (20, 3)).tolist():
        counters = random.integers(0, 2**32, 5).tolist()
        first, second = threefry(words_of((k0, k1)), torch.stack(words_of(counters)), high)
        expected = [reference_threefry((k0, k1), (c, high)) for c in counters]
        assert [unsigned(pair) for pair in zip(first, second, strict=True)] == expected


def test_a_uniform_is_the_word_of_its_seed_mode_step_and_call():
    seed, mode, step, call, n = 2**40 + 3, 2, 7, 4, 6
    key = reference_threefry((seed % 2**32, seed >> 32), (mode, 0))
    pairs = [reference_threefry(((key[0] + step) % 2**32, key[1]), (i, call)) for i in range(n // 2)]
    expected = [(word + 0.5) / 2**32 for half in zip(*pairs, strict=True) for word in half]
    rng = Keys(run_key(seed, mode), torch.tensor(step), call)
    np.testing.assert_allclose(rng.uniform(n).numpy(), expected, rtol=2**-23)


def test_a_run_key_depends_on_the_whole_seed_and_on_the_mode():
    seeds = [0, 1, 2**31, 2**32, 2**63, 2**64 - 1, 2**64, 2**64 + 1, 2**128, 2**200, -1, -(2**64), -(2**64) - 1]
    keys = run_keys(seeds, 3)
    assert keys.shape == (3 * len(seeds), 2)
    assert keys.dtype == torch.int32
    assert len({tuple(row) for row in keys.tolist()}) == 3 * len(seeds)
    assert torch.equal(keys[3:6], run_keys(1, 3))
    assert torch.equal(keys[5], run_key(1, 2))


def test_the_mode_of_a_key_may_be_a_tensor():
    modes = torch.arange(4)
    assert torch.equal(torch.vmap(lambda mode: run_key(2**50, mode))(modes), run_keys(2**50, 4))
    assert torch.equal(run_key(-3, torch.tensor(2)), run_key(-3, 2))


def draw_everything(key, step):
    rng = Keys(key, step)
    params = {"b": torch.zeros(3), "a": torch.zeros(2, 2, dtype=torch.float64), "c": torch.zeros(5)}
    return {
        "normals": rng.normal_like(params),
        "uniforms": rng.uniform_like(params),
        "one": rng.uniform(),
        "integers": rng.randint(10, (4,)),
        "coins": rng.bernoulli((7,), 0.3),
        "key": rng.key(),
        "half": rng.normal((3,), torch.bfloat16),
    }


@pytest.mark.parametrize("which", ["keys", "steps", "both"])
def test_a_vmapped_row_is_its_lone_call_to_the_bit(which):
    keys = run_keys(3, 4) if which != "steps" else run_key(3).expand(4, 2)
    steps = torch.arange(9, 13) if which != "keys" else torch.full((4,), 9)
    if which == "keys":
        rows = torch.vmap(draw_everything, in_dims=(0, None))(keys, steps[0])
    elif which == "steps":
        rows = torch.vmap(draw_everything, in_dims=(None, 0))(keys[0], steps)
    else:
        rows = torch.vmap(draw_everything)(keys, steps)
    for m in range(4):
        lone = draw_everything(keys[m], steps[m])
        torch.testing.assert_close(torch.utils._pytree.tree_map(lambda t, m=m: t[m], rows), lone, rtol=0, atol=0)


def test_compiled_bits_are_the_eager_bits():
    # Constants of many bits at every place, under vmap, where compilers have rounded them to float32.
    def draw(key, step):
        rng = Keys(key, step, call=2**30 + 1)
        return rng.randint(2**40 + 1), rng.normal(1001)

    draws = torch.vmap(draw, in_dims=(0, None))
    keys, step = run_keys(0, 3), torch.tensor(2**31 - 1)
    integers, floats = draws(keys, step)
    compiled_integers, compiled_floats = torch.compile(draws, fullgraph=True)(keys, step)
    assert torch.equal(compiled_integers, integers)
    # Compiled logarithms, sines and cosines are other implementations: a few units in the last place of the radius.
    torch.testing.assert_close(compiled_floats, floats, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_compiled_keys_are_the_eager_keys():
    keys = torch.vmap(lambda mode: Keys(run_key(2**63 + 123456789, mode), mode).key())
    assert torch.equal(torch.compile(keys, fullgraph=True)(torch.arange(3)), keys(torch.arange(3)))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_captured_draw_follows_its_step_and_has_the_bits_of_the_cpu():
    key, step = run_key(1, device="cuda"), torch.zeros((), dtype=torch.int64, device="cuda")

    def draw():
        rng = Keys(key, step)
        return rng.uniform(1000), rng.key(), rng.normal((100,), torch.float64), rng.randint(1000, 50)

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        draw()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = draw()
    for number in (3, 4):
        step.fill_(number)
        graph.replay()
        rng = Keys(run_key(1), torch.tensor(number))
        assert torch.equal(captured[0].cpu(), rng.uniform(1000))
        assert torch.equal(captured[1].cpu(), rng.key())
        torch.testing.assert_close(captured[2].cpu(), rng.normal((100,), torch.float64), rtol=1e-13, atol=1e-13)
        assert torch.equal(captured[3].cpu(), rng.randint(1000, 50))


class Recorder(torch.utils._python_dispatch.TorchDispatchMode):
    """Collects the names of the operations that run inside it."""

    def __init__(self):
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.add(func.name().removeprefix("aten::").split(".")[0])
        return func(*args, **(kwargs or {}))


def test_a_draw_builds_no_tensor_from_a_number_and_reads_none_back():
    key, mode = run_key(0), torch.tensor(1)
    params = {"a": torch.zeros(3), "b": torch.zeros(2, dtype=torch.float64)}
    with Recorder() as recorder:
        rng = Keys(run_key(0, mode), STEP)
        rng.normal_like(params), rng.uniform(), rng.bernoulli((2,), 0.5), rng.randint(3, 2), Keys(key, STEP).key()
    assert {"arange", "bitwise_xor_"} <= recorder.names
    assert not recorder.names & {"_local_scalar_dense", "lift_fresh", "scalar_tensor", "full", "fill_", "zeros", "ones"}


def test_the_order_of_a_dictionary_does_not_matter():
    shapes = {"z": (3, 2), "m": (4,), "a": (), "e": (0, 2)}
    dtypes = {"z": torch.float32, "m": torch.float64, "a": torch.bfloat16, "e": torch.float32}
    params = {k: torch.zeros(shapes[k], dtype=dtypes[k]) for k in shapes}
    backwards = {k: params[k] for k in reversed(params)}
    noise, again = (Keys(run_key(0), STEP).normal_like(p) for p in (params, backwards))
    assert list(noise) == list(params)
    assert list(again) == list(backwards)
    for k, p in params.items():
        assert (noise[k].shape, noise[k].dtype) == (p.shape, p.dtype)
        assert torch.equal(noise[k], again[k])
    assert Keys(run_key(0), STEP).normal_like({}) == {}


def test_a_dictionary_is_one_draw_cut_in_sorted_name_order():
    params = {"b": torch.zeros(2, 3), "a": torch.zeros(5)}
    noise = Keys(run_key(0), STEP).normal_like(params)
    flat = Keys(run_key(0), STEP).normal(11)
    assert torch.equal(torch.cat([noise["a"], noise["b"].flatten()]), flat)
    assert torch.equal(Keys(run_key(0), STEP).normal_like(torch.zeros(11)), flat)


NEIGHBOURS = [{"seed": 1}, {"seed": 2**32}, {"mode": 1}, {"step": 1}, {"step": 2}, {"call": 1}, {"call": 2}]


@pytest.mark.parametrize("other", NEIGHBOURS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_neighbouring_streams_share_nothing(other, dtype):
    n = 200_000
    x, y = normals(n, dtype=dtype).double(), normals(n, dtype=dtype, **other).double()
    assert (x == y).sum() < 5
    # Correlations of independent normals have standard error 1/√n; so have those of normalised squares and of shifts.
    squares = [(z**2 - 1) / math.sqrt(2) for z in (x, y)]
    for lag in (0, 1, 2, n // 2):
        assert abs((x * y.roll(lag)).mean()) < 4.5 / math.sqrt(n)
        assert abs((squares[0] * squares[1].roll(lag)).mean()) < 4.5 / math.sqrt(n)


def test_many_neighbouring_keys_are_uncorrelated_in_every_pair():
    n, m = 1_000, 40
    rows = torch.vmap(lambda key: Keys(key, STEP).normal(n))(run_keys(0, m)).double()
    steps = torch.vmap(lambda step: Keys(run_key(0), step).normal(n))(torch.arange(m)).double()
    calls = torch.stack([normals(n, call=c) for c in range(m)]).double()
    for streams in (rows, steps, calls):
        correlations = torch.corrcoef(streams)[torch.triu(torch.ones(m, m), 1).bool()] * math.sqrt(n)
        # 780 pairs, each a standard normal: a maximum above 4.8 has probability 0.1 %; the sd has standard error 2.5 %.
        assert correlations.abs().max() < 4.8
        assert abs(correlations.std() - 1) < 0.1


def test_the_halves_of_a_pair_are_uncorrelated():
    n = 1_000_000
    cosine, sine = normals(2 * n).double().chunk(2)
    for x, y in ((cosine, sine), (cosine**2 - 1, sine**2 - 1), (cosine.abs(), sine.abs())):
        correlation = torch.corrcoef(torch.stack([x, y]))[0, 1]
        assert abs(correlation) < 4.5 / math.sqrt(n)


def assert_moments_are_normal(sums: np.ndarray, n: int) -> None:
    """Check the means of x, x², x³, x⁴ within 4.5 of their standard errors, √((E x²ᵏ − (E xᵏ)²) / n)."""
    for k, (total, expected, variance) in enumerate(zip(sums, (0, 1, 0, 3), (1, 2, 15, 96), strict=True), 1):
        assert abs(total / n - expected) < 4.5 * math.sqrt(variance / n), f"moment {k} is {total / n}"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_normals_have_the_moments_and_the_distribution_of_normals(dtype):
    n = 1_000_000
    x = normals(n, seed=11, dtype=dtype).double().numpy()
    assert_moments_are_normal(np.array([np.mean(x**k) * n for k in (1, 2, 3, 4)]), n)
    assert stats.kstest(x, "norm").pvalue > 1e-3


def test_uniforms_are_uniform_and_never_zero_or_one():
    x = Keys(run_key(4), STEP).uniform(2_000_000)
    assert x.min() > 0
    assert x.max() < 1
    assert stats.kstest(x.double().numpy(), "uniform").pvalue > 1e-3


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_the_logarithm_of_a_uniform_is_finite_in_every_precision(dtype):
    u = Keys(run_key(0), STEP).uniform((1 << 17,), dtype)
    assert u.dtype == dtype
    assert torch.isfinite(torch.log(u.double())).all()
    assert torch.isfinite(torch.log1p(-u.double())).all()


def test_the_extreme_words_give_finite_normals_with_tails_beyond_six_deviations(monkeypatch):
    words = torch.tensor([0, 1, -1, -2, 2**31 - 1, -(2**31)], dtype=torch.int32)
    grid = torch.cartesian_prod(words, words).unbind(1)
    monkeypatch.setattr("plausible.weights.rng.threefry", lambda key, low, high: tuple(w.clone() for w in grid))
    by_numpy = torch.stack(grid)[:, None].numpy().view(np.uint32)
    monkeypatch.setattr("plausible.weights.host_draws.encrypt", lambda key, low, high, steps: by_numpy.copy())
    for dtype, tail in ((torch.float32, 6.7), (torch.float64, 9.4)):
        n = 72 if dtype == torch.float32 else 36
        rng = Keys(run_key(0), STEP)
        x, u = rng.normal(n, dtype), rng.uniform(n, dtype)
        assert torch.isfinite(x).all()
        assert x.abs().max() > tail
        assert 0 < u.min() < 2.0**-32
        assert 1 - 2.0**-23 < u.max() < 1


def test_double_precision_draws_have_53_random_bits():
    u = Keys(run_key(0), STEP).uniform(200_000, torch.float64).numpy()
    u = u[u >= 0.5]  # where a double has exactly 53 bits after the point
    bits = (u * 2**53).astype(np.int64)
    assert 0.2 < (bits & 1).mean() < 0.5  # rounding to even takes its share of the very last bit
    for k in range(1, 52):
        ones = ((bits >> k) & 1).mean()
        assert abs(ones - 0.5) < 4.5 * 0.5 / math.sqrt(len(u)), f"bit {k} is one in {ones:.3f} of the draws"
    x = normals(100_000, dtype=torch.float64)
    assert (x != x.float().double()).float().mean() > 0.999


def test_integers_and_coins_have_their_frequencies():
    n = 100_000
    rng = Keys(run_key(8), STEP)
    counts = np.bincount(rng.randint(7, n).numpy(), minlength=7)
    assert len(counts) == 7
    assert stats.chisquare(counts).pvalue > 1e-3
    assert rng.randint(1, (3,)).tolist() == [0, 0, 0]
    p = torch.tensor([0.0, 0.1, 0.7, 1.0])
    frequency = rng.bernoulli((n, 4), p).double().mean(0)
    assert (frequency - p).abs().le(4.5 * (p * (1 - p) / n).sqrt() + 1e-12).all()


def test_a_child_key_begins_a_stream_of_its_own():
    rng = Keys(run_key(0), STEP)
    keys = [rng.key() for _ in range(3)]
    assert len({tuple(k.tolist()) for k in keys}) == 3
    streams = [normals(10_000)] + [Keys(k, STEP).normal(10_000) for k in keys]
    correlations = torch.corrcoef(torch.stack(streams)).triu(1)
    assert correlations.abs().max() < 4.5 / math.sqrt(10_000)


def test_every_call_counts_and_can_be_skipped_to():
    rng = Keys(run_key(0), STEP)
    (
        rng.normal(3),
        rng.uniform(),
        rng.bernoulli((2,), 0.5),
        rng.randint(3, 2),
        rng.key(),
        rng.uniform_like(torch.ones(2)),
    )
    assert torch.equal(rng.normal(9), Keys(run_key(0), STEP, call=6).normal(9))


def test_the_global_generator_is_left_alone():
    before = torch.get_rng_state()
    draw_everything(run_key(0), STEP)
    permutation(10, 1, 2)
    with forked(1, 2):
        torch.rand(3)
    with pytest.raises(RuntimeError), forked(3):
        torch.rand(3) @ torch.rand(4)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_forked_generator_is_seeded_by_its_words():
    def draw(*words):
        with forked(*words):
            return torch.rand(4)

    assert torch.equal(draw(1, 2), draw(1, 2))
    assert torch.equal(draw(1, 2), torch.rand(4, generator=generator(1, 2)))
    draws = [draw(*words) for words in [(), (0,), (0, 0), (1, 2), (2, 1), (-1,), (2**64 - 1,), (2**64,), (2**32,)]]
    assert len({tuple(d.tolist()) for d in draws}) == len(draws)


def test_a_permutation_is_one_and_depends_on_its_words():
    order = permutation(1000, 0, 3)
    assert torch.equal(order.sort().values, torch.arange(1000))
    assert torch.equal(order, permutation(1000, 0, 3))
    assert not torch.equal(order, permutation(1000, 0, 4))


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match=r"int32 of shape \(2,\), got torch.int32 of shape \(3, 2\)"):
        Keys(run_keys(0, 3), STEP)
    with pytest.raises(ValueError, match="0-d int32 or int64"):
        Keys(run_key(0), torch.tensor(1.0))
    with pytest.raises(TypeError, match="torch.int64 for weight"):
        Keys(run_key(0), STEP).normal_like({"weight": torch.arange(3)})
    with pytest.raises(ValueError, match="got 0"):
        Keys(run_key(0), STEP).randint(0, 3)
    with pytest.raises(ValueError, match="modes=0"):
        run_keys(0, 0)


@pytest.mark.slow
def test_a_hundred_million_normals_have_the_moments_and_the_distribution_of_normals():
    n, chunk = 100_000_000, 2_000_000
    # Cells of equal probability; the distance between distribution functions is then known at 2^16 points.
    cells = 1 << 16
    edges = torch.from_numpy(special.ndtri(np.arange(1, cells) / cells)).float()
    counts, sums = torch.zeros(cells, dtype=torch.int64), np.zeros(4)
    for step in range(n // chunk):
        x = normals(chunk, seed=2024, step=step)
        counts += torch.bincount(torch.bucketize(x, edges), minlength=cells)
        x = x.double()
        sums += [x.pow(k).sum().item() for k in (1, 2, 3, 4)]
    assert_moments_are_normal(sums, n)
    probabilities = np.diff(special.ndtr(edges.double().numpy()), prepend=0, append=1)
    distance = np.abs((counts.numpy() / n - probabilities).cumsum()).max()
    assert stats.kstwobign.sf(distance * math.sqrt(n)) > 1e-3
    assert stats.chisquare(counts.numpy(), probabilities * n).pvalue > 1e-3
