"""What only a GPU can show: weights on several devices, and half precision with its scaler."""

import pytest
import torch
from tests.optim.cases import CASES, bare_loop, data, loop, losses, make, weights
from torch import nn

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine")


class OnTwoDevices(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(3, 5).double(), nn.Linear(5, 1).double().to("cuda")

    def forward(self, x):
        return self.second(self.first(x).tanh().to(self.second.weight.device)).cpu()


@pytest.mark.parametrize("name", CASES)
def test_weights_may_be_on_several_devices(name):
    network = OnTwoDevices()
    before = weights(network)
    optimizer = make(name, network)
    loop(optimizer, *data(), steps=3)
    bare_loop(optimizer, *data(), steps=2)
    after = weights(network)
    assert all(after[k].device == w.device and not torch.equal(after[k], w) for k, w in before.items())
    optimizer.load_state_dict(optimizer.state_dict())
    loop(optimizer, *data(), steps=1)
    alone = OnTwoDevices()
    alone.second.cpu()
    twin = make(name, alone)
    loop(twin, *data(), steps=3)
    bare_loop(twin, *data(), steps=2)
    for k, w in weights(alone).items():
        torch.testing.assert_close(after[k].cpu(), w, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", CASES)
def test_half_precision_and_its_scaler_stay_near_single_precision(name):
    x, y = (t.cuda() for t in data(torch.float32))
    found = []
    for half in (False, True):
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1)).cuda()
        start = weights(network)
        optimizer, scaler = make(name, network), torch.amp.GradScaler("cuda", enabled=half, init_scale=2.0**10)
        for _ in range(5):
            optimizer.zero_grad()
            with optimizer.sampled():
                with torch.autocast("cuda", dtype=torch.float16, enabled=half):
                    loss = losses(network, x, y).float().mean()
                scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(network.parameters(), 10.0)
            scaler.step(optimizer)
            scaler.update()
        found.append(torch.cat([(w - start[k]).flatten() for k, w in weights(network).items()]))
    assert (found[1] - found[0]).norm() < 0.05 * found[0].norm()
