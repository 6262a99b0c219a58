"""Posterior files: damaged, foreign and half-written ones, and files that name code."""

from __future__ import annotations

import errno
import json
import os
import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tests.contract_cases import assert_same_bits, blobs, fit, mlp, model
from torch import nn

import plausible as pl
from plausible.core.files import container


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "a.plausible"
    fit("SWAG").save(path)
    return path


def one_line(error) -> str:
    message = str(error.value)
    assert "\n" not in message and len(message) < 500, message
    return message


@pytest.mark.parametrize("number", range(40))
def test_a_file_with_one_flipped_bit_is_refused(number, saved):
    chance = random.Random(number)
    raw = bytearray(saved.read_bytes())
    header = 8 + int.from_bytes(raw[:8], "little")
    place = chance.randrange(header) if number % 2 else chance.randrange(header, len(raw))
    raw[place] ^= 1 << chance.randrange(8)
    saved.write_bytes(raw)
    with pytest.raises(ValueError) as caught:
        pl.load(saved, mlp())
    assert str(saved) in one_line(caught)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.1, 0.5, 0.99])
def test_a_truncated_file_is_refused(share, saved):
    raw = saved.read_bytes()
    saved.write_bytes(raw[: int(share * len(raw))])
    with pytest.raises(ValueError) as caught:
        pl.load(saved, mlp())
    assert str(saved) in one_line(caught)


def test_foreign_files_are_refused(tmp_path):
    foreign = tmp_path / "foreign"
    torch.save(mlp().state_dict(), foreign)
    with pytest.raises(ValueError, match="not a plausible file or is damaged") as caught:
        pl.load(foreign, mlp())
    one_line(caught)
    save_file({"a": torch.ones(2)}, foreign)
    with pytest.raises(ValueError, match="not one that plausible wrote") as caught:
        pl.load(foreign, mlp())
    one_line(caught)
    with pytest.raises(FileNotFoundError, match="nowhere") as caught:
        pl.load(tmp_path / "nowhere", mlp())
    one_line(caught)


def test_a_checkpoint_is_no_posterior(tmp_path):
    fit("MAP", checkpoint=tmp_path / "run.ckpt")
    with pytest.raises(ValueError, match="holds a checkpoint, not a posterior"):
        pl.load(tmp_path / "run.ckpt", mlp())


def test_a_posterior_is_no_checkpoint(saved):
    with pytest.raises(ValueError, match="holds a posterior, not a checkpoint"):
        fit("SWAG", checkpoint=saved, resume=True)


def test_a_posterior_of_another_network_is_refused(saved):
    for other in (nn.Sequential(nn.Linear(2, 9), nn.Tanh(), nn.Linear(9, 3)), nn.Linear(2, 3)):
        with pytest.raises(ValueError, match="not ") as caught:
            pl.load(saved, other)
        one_line(caught)


def test_a_file_that_does_not_name_its_network_asks_for_it(saved):
    with pytest.raises(ValueError, match="give pl.load") as caught:
        pl.load(saved)
    assert "Sequential" in one_line(caught)


def test_a_file_of_one_of_our_networks_needs_nothing(tmp_path):
    posterior = fit("SWAG", model(pl.networks.MLP(2, (5,), 3, activation="tanh")))
    posterior.save(tmp_path / "a")
    assert_same_bits(pl.load(tmp_path / "a"), posterior)


# --- files that name code ---

CHANGES = {
    "posterior class": (("posterior", "class"), "os.system"),
    "likelihood": (("model", "likelihood", "name"), "subprocess.Popen"),
    "prior": (("model", "prior", "name"), "builtins.eval"),
    "network": (("model", "network"), {"name": "os.system", "config": {"command": "true"}}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_names_an_unknown_class_is_refused_even_with_a_right_checksum(change, saved):
    tensors, manifest = container.read(saved, "posterior")
    manifest = json.loads(json.dumps(manifest))
    (*path, last), value = CHANGES[change]
    node = manifest
    for key in path:
        node = node[key]
    node[last] = value
    manifest.pop("format")
    container.write(saved, tensors, manifest)
    with pytest.raises(ValueError) as caught:
        pl.load(saved) if change == "network" else pl.load(saved, mlp())
    assert "upgrade" in one_line(caught) or "known are" in one_line(caught) or "one of" in one_line(caught)


def test_nothing_is_unpickled(saved, monkeypatch):
    import pickle

    def refuse(*args, **kwargs):
        raise AssertionError("a file was unpickled")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    monkeypatch.setattr(torch, "load", refuse)
    pl.load(saved, mlp())


def test_a_file_of_a_later_format_is_refused(saved):
    tensors, manifest = container.read(saved, "posterior")
    container.write(saved, tensors, {**manifest, "format": 99})
    with pytest.raises(ValueError, match="format 99.*upgrade") as caught:
        pl.load(saved, mlp())
    one_line(caught)


# --- a full disk ---


def no_space(*args, **kwargs):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("where", ["save_file", "fsync", "replace"])
def test_a_full_disk_leaves_the_old_file_and_nothing_else(where, saved, monkeypatch):
    before = saved.read_bytes()
    posterior = fit("SWAG", seed=9)
    with monkeypatch.context() as patch:
        if where == "save_file":
            patch.setattr(container, "save_file", no_space)
        else:
            patch.setattr(os, where, no_space)
        with pytest.raises(OSError, match="No space left on device") as caught:
            posterior.save(saved)
    assert str(saved) in one_line(caught)
    assert saved.read_bytes() == before
    assert [p.name for p in saved.parent.iterdir()] == [saved.name]


def gone() -> int:
    """The number of a process that is no more."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


def test_an_orphan_of_a_killed_process_is_cleaned_up(tmp_path):
    path = tmp_path / "a[1].plausible"
    orphan = tmp_path / f".{path.name}.{gone()}.tmp"
    orphan.write_bytes(b"half")
    fit("MAP").save(path)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    pl.load(path, mlp())


def test_a_folder_is_made_where_there_is_none(tmp_path):
    fit("MAP").save(tmp_path / "runs" / "first" / "a.plausible")
    assert (tmp_path / "runs" / "first" / "a.plausible").is_file()


# --- what a file holds ---


class Own(pl.likelihoods.Categorical):
    """A user's own class."""


def test_a_posterior_with_the_users_own_likelihood_needs_the_model(tmp_path):
    own = pl.BayesianModel(mlp(), Own())
    posterior = pl.fit(own, blobs(), pl.MAP(), steps=3, progress=False, device="cpu")
    posterior.save(tmp_path / "a")
    with pytest.raises(ValueError, match="Own.*give pl.load") as caught:
        pl.load(tmp_path / "a", mlp())
    one_line(caught)
    loaded = pl.load(tmp_path / "a", own)
    assert torch.equal(loaded.predict(blobs()[0]).outputs, posterior.predict(blobs()[0]).outputs)


def test_fixed_weights_come_from_the_file_not_from_the_given_network(tmp_path):
    part = model(parameters="2.*")
    posterior = fit("MAP", part)
    posterior.save(tmp_path / "a")
    other = mlp()
    with torch.no_grad():
        other[0].weight.fill_(7.0)
    loaded = pl.load(tmp_path / "a", other)
    assert torch.equal(loaded.predict(blobs()[0]).outputs, posterior.predict(blobs()[0]).outputs)
    assert bool((other[0].weight == 7.0).all())


def test_a_posterior_of_a_log_density_survives(tmp_path):
    density = pl.LogDensity(lambda p: -0.5 * p["w"].square().sum(), {"w": torch.ones(3)})
    posterior = pl.fit(density, None, pl.HMC(warmup=5), steps=15, progress=False, device="cpu")
    posterior.save(tmp_path / "a")
    assert_same_bits(pl.load(tmp_path / "a", density), posterior)
    with pytest.raises(ValueError, match="LogDensity"):
        pl.load(tmp_path / "a")


class OwnLikelihood:
    """A user's own, which a file cannot hold."""

    def log_prob(self, outputs, y):
        return -((y - outputs) ** 2).sum(-1)

    def distribution(self, outputs):
        return torch.distributions.Normal(outputs, 0.5**0.5)


def test_a_posterior_loaded_with_a_model_has_the_fixed_weights_and_buffers_of_the_file(tmp_path):
    def of(seed):
        torch.manual_seed(seed)
        network = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
        network[0].requires_grad_(False)
        network[1].running_mean.normal_()
        return pl.BayesianModel(network, OwnLikelihood(), temperature=0.5)

    x, y = torch.randn(20, 2), torch.randn(20, 2)
    saved = pl.fit(of(0), (x, y), pl.HMC(step_size=0.05, warmup=2), steps=6, device="cpu", progress=False)
    saved.save(tmp_path / "a.plausible")
    again = pl.load(tmp_path / "a.plausible", of(1))
    assert torch.equal(again.predict(x).mean, saved.predict(x).mean)
    assert again.model.temperature == 0.5


def test_a_prior_that_was_a_posterior_of_known_noise_is_loaded_where_the_noise_is_unknown(tmp_path):
    def of(scale, prior):
        torch.manual_seed(0)
        return pl.BayesianModel(nn.Linear(2, 1), pl.likelihoods.Normal(scale=scale), prior=prior)

    x, y = torch.randn(20, 2), torch.randn(20, 1)
    settings = {"steps": 40, "device": "cpu", "progress": False}
    yesterday = pl.fit(of(1.0, pl.priors.Normal()), (x, y), pl.SWAG(rank=3), **settings)
    today = pl.fit(of("learn", yesterday), (x, y), pl.MAP(learning_rate=1e-3), **settings)
    today.save(tmp_path / "a.plausible")
    again = pl.load(tmp_path / "a.plausible", nn.Linear(2, 1))
    assert torch.equal(again.predict(x).std, today.predict(x).std)
    assert again.model.log_joint(again.mean, (x, y), 20) == today.model.log_joint(today.mean, (x, y), 20)


def test_a_network_of_another_precision_is_refused(tmp_path):
    of = pl.BayesianModel(nn.Linear(2, 1).double(), pl.likelihoods.Normal())
    pl.posteriors.Delta(of, of.init()).save(tmp_path / "a.plausible")
    with pytest.raises(ValueError, match=r"holds torch.float64 .* network.to\(torch.float64\)"):
        pl.load(tmp_path / "a.plausible", nn.Linear(2, 1))


def test_expanded_and_shared_memory_is_written_as_what_it_holds(tmp_path):
    """As of a network with norm statistics that lies in memory which processes share, under a chain of one draw."""
    lone, shared = torch.tensor(7), torch.arange(3.0).share_memory_()
    tensors = {"a": lone.expand(1), "b": lone.expand(2), "c": shared, "d": shared, "e": shared.expand(1, 3)}
    container.write(tmp_path / "file", tensors, {"kind": "posterior"})
    found, _ = container.read(tmp_path / "file", "posterior")
    assert found.keys() == tensors.keys() and all(torch.equal(found[k], t) for k, t in tensors.items())


def test_what_is_left_beside_a_file_that_was_never_finished_goes_with_it(tmp_path, monkeypatch):
    def torn(tensors, filename, metadata):
        (Path(filename).parent / ".tmpAbCdEf").write_bytes(b"half")  # as safetensors does before it renames
        raise OSError("the disk is full")

    monkeypatch.setattr(container, "save_file", torn)
    with pytest.raises(OSError, match="the disk is full"):
        container.write(tmp_path / "run.ckpt", {"w": torch.ones(2)}, {"kind": "x"})
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    orphan = tmp_path / f".run.ckpt.{container._here()}.{gone()}.abc_1.tmp"
    orphan.mkdir()
    (orphan / ".tmpAbCdEf").write_bytes(b"half")
    container.write(tmp_path / "run.ckpt", {"w": torch.ones(2)}, {"kind": "x"})
    assert [p.name for p in tmp_path.iterdir()] == ["run.ckpt"]


def test_a_file_may_be_read_by_whom_any_new_file_may(tmp_path):
    for mask in (0o022, 0o027, 0o077):
        before = os.umask(mask)
        try:
            container.write(tmp_path / "a", {"w": torch.ones(2)}, {"kind": "x"})
            (tmp_path / "b").touch()
        finally:
            os.umask(before)
        assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode
        (tmp_path / "b").unlink()
        (tmp_path / "a").unlink()


def test_a_file_that_is_written_over_is_read_by_nobody_else_than_before(tmp_path):
    container.write(tmp_path / "a", {"w": torch.ones(2)}, {"kind": "x"})
    (tmp_path / "a").chmod(0o600)
    container.write(tmp_path / "a", {"w": torch.zeros(2)}, {"kind": "x"})
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600


def test_what_others_are_writing_is_left_alone(tmp_path):
    """Processes that live, those of other machines, and files whose names begin alike."""
    others = [
        f".a.{os.getpid()}.tmp",
        f".a.00000000.{gone()}.x.tmp",
        f".a.best.{container._here()}.{gone()}.x.tmp",
        ".a.b.tmp",
    ]
    for name in others:
        (tmp_path / name).mkdir()
    container.write(tmp_path / "a", {"w": torch.ones(2)}, {"kind": "x"})
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(["a", *others])


def test_several_may_write_one_file_at_once(tmp_path):
    """As all ranks of a run do that save their posterior."""
    path, failed = tmp_path / "a", []

    def write(value):
        for _ in range(20):
            try:
                container.write(path, {"w": torch.full((20_000,), value)}, {"kind": "x"})
            except OSError as error:
                failed.append(error)

    threads = [threading.Thread(target=write, args=(float(i),)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed
    assert len(container.read(path, "x")[0]["w"].unique()) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["a"]
