import numpy
import pytest
import torch
from torch.overrides import TorchFunctionMode

from plausible import metrics

LABELLED = [metrics.accuracy, metrics.nll, metrics.brier, metrics.ece, metrics.ace]
P = numpy.array([[0.2, 0.8], [0.7, 0.3], [0.6, 0.4]])
SCORE_IN, SCORE_OUT = numpy.array([0.1, 0.4, 0.3]), numpy.array([0.35, 0.8])
CORRECT = numpy.array([True, False, True])
Y = numpy.array([0.5, 0.1, 0.9])

# One call of every metric with arguments that are neither best nor worst.
CALLS = {
    "accuracy": (P, numpy.array([1, 1, 0])),
    "nll": (P, numpy.array([1, 1, 0])),
    "brier": (P, numpy.array([1, 1, 0])),
    "ece": (P, numpy.array([1, 1, 0])),
    "ace": (P, numpy.array([1, 1, 0])),
    "auroc_ood": (SCORE_IN, SCORE_OUT),
    "aupr_ood": (SCORE_IN, SCORE_OUT),
    "fpr95": (SCORE_IN, SCORE_OUT),
    "aurc": (SCORE_IN, CORRECT),
    "auroc_error": (SCORE_IN, CORRECT),
    "rmse": (SCORE_IN, Y),
    "crps": (numpy.stack([SCORE_IN, Y + 0.3]), Y),
    "picp": (SCORE_IN, SCORE_IN + 0.3, Y),
    "interval_score": (SCORE_IN, SCORE_IN + 0.3, Y, 0.9),
    "agreement": (P, P[[0, 2, 0]]),
    "total_variation": (P, P[[0, 2, 0]]),
}


def in_type(arguments, dtype):
    def convert(value):
        if not isinstance(value, numpy.ndarray):
            return value
        tensor = torch.from_numpy(value)
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    return [convert(value) for value in arguments]


def test_every_metric_is_called_here():
    assert {*CALLS, "calibration_curve", "CalibrationCurve"} == set(metrics.__all__)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_answer_is_one_number_in_the_type_of_the_question(name, dtype):
    metric = getattr(metrics, name)
    answer = metric(*in_type(CALLS[name], dtype))
    assert answer.shape == () and answer.dtype == dtype
    exact = metric(*in_type([*CALLS[name]], torch.float64))
    # A few roundings of the inputs, and one of the answer (interval_score multiplies the former by 20).
    slack = 40 * torch.finfo(dtype).eps
    assert answer.item() == pytest.approx(exact.item(), rel=slack, abs=slack)


@pytest.mark.parametrize("name", CALLS)
def test_numpy_arrays_are_converted_and_keep_their_precision(name):
    metric = getattr(metrics, name)
    answer = metric(*CALLS[name])
    assert isinstance(answer, torch.Tensor) and answer.dtype == torch.float64
    assert torch.equal(answer, metric(*in_type(CALLS[name], torch.float64)))


@pytest.mark.parametrize("name", CALLS)
def test_no_metric_changes_its_arguments_or_draws_random_numbers(name):
    arguments = in_type(CALLS[name], torch.float64)
    before = [value.clone() if isinstance(value, torch.Tensor) else value for value in arguments]
    generator = torch.get_rng_state()
    getattr(metrics, name)(*arguments)
    assert torch.equal(generator, torch.get_rng_state())
    for value, earlier in zip(arguments, before, strict=True):
        assert torch.equal(value, earlier) if isinstance(value, torch.Tensor) else value == earlier


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_gives_the_answer_of_the_cpu_and_keeps_it_there(name):
    metric = getattr(metrics, name)
    arguments = [
        value.cuda() if isinstance(value, torch.Tensor) else value for value in in_type(CALLS[name], torch.float32)
    ]
    answer = metric(*arguments)
    assert answer.is_cuda
    torch.testing.assert_close(answer.cpu(), metric(*in_type(CALLS[name], torch.float32)))


class ReadBacks(TorchFunctionMode):
    """Counts the calls that make Python wait for the device."""

    NAMES = frozenset({"tolist", "item", "numpy", "cpu", "nonzero", "unique", "__bool__", "__int__", "__float__"})

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.count += getattr(function, "__name__", "") in self.NAMES
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", CALLS)
def test_a_metric_reads_back_once_for_all_its_checks(name):
    arguments = in_type(CALLS[name], torch.float32)
    with ReadBacks() as read_backs:
        getattr(metrics, name)(*arguments)
    assert read_backs.count == 1


@pytest.mark.parametrize("name", CALLS)
def test_lists_are_refused_with_the_way_out(name):
    first, *others = CALLS[name]
    with pytest.raises(TypeError, match=r"must be a tensor or a NumPy array, got list; did you mean torch.as_tensor\("):
        getattr(metrics, name)(first.tolist(), *others)


def test_read_only_reversed_and_foreign_arrays_are_fine():
    probs, y = P.copy(), numpy.array([1, 1, 0], dtype=">i4")
    probs.flags.writeable = False
    expected = metrics.nll(P, y.astype("int64"))
    assert torch.equal(metrics.nll(probs, y), expected)
    torch.testing.assert_close(metrics.nll(probs[::-1].astype(">f8"), y[::-1]), expected)


def test_arrays_of_words_are_refused():
    with pytest.raises(TypeError, match="y must hold real numbers, got dtype <U3"):
        metrics.accuracy(P, numpy.array(["cat", "dog", "cat"]))


def test_two_devices_are_refused_with_the_way_out():
    with pytest.raises(
        ValueError, match=r"probs and y must be on one device, got cpu and meta; did you mean y.to\('cpu'\)"
    ):
        metrics.accuracy(torch.eye(2), torch.zeros(2, dtype=torch.long, device="meta"))


@pytest.mark.parametrize("metric", [*LABELLED, metrics.calibration_curve])
@pytest.mark.parametrize(
    ("probs", "y", "error", "message"),
    [
        ([0.2, 0.7], [0, 1], ValueError, r"probs must be \(N, C\) or \(N, C, H, W\), got \(2,\); for two classes"),
        ([[2.0, -3.0]], [0], ValueError, r"probs must lie in \[0, 1\], got -3; if these are logits.*softmax"),
        ([[1.5, 0.0]], [0], ValueError, r"probs must lie in \[0, 1\], got 1.5"),
        ([[torch.nan, 0.5]], [0], ValueError, r"probs must lie in \[0, 1\], got nan"),
        (
            [[0.5, 0.5], [0.5, 0.25]],
            [0, 0],
            ValueError,
            r"sum to one over axis 1, got a sum of 0.75; did you mean probs /",
        ),
        ([[0.5, 0.5]], [2], ValueError, r"y must hold labels from 0 to 1, got 2; did you mean ignore_index=2"),
        ([[0.5, 0.5]], [-1], ValueError, r"y must hold labels from 0 to 1, got -1; did you mean ignore_index=-1"),
        ([[0.5, 0.5]], [0.0], TypeError, r"y must hold integer class labels, got torch.float32; did you mean y.long"),
        (
            [[0.5, 0.5]],
            [[0]],
            ValueError,
            r"y must be \(1,\) for probs of \(1, 2\), got \(1, 1\); did you mean y.squeeze",
        ),
        ([[0.5, 0.5]], [[0, 1]], ValueError, r"got \(1, 2\); did you mean y.argmax\(1\)"),
        ([[0.5, 0.5]], [0, 1], ValueError, r"y must be \(1,\) for probs of \(1, 2\), got \(2,\); one label per row"),
        ([[1, 0]], [0], TypeError, r"probs must be floating point, got torch.int64"),
    ],
)
def test_wrong_probabilities_and_labels_are_named(metric, probs, y, error, message):
    with pytest.raises(error, match=message) as raised:
        metric(torch.tensor(probs), torch.tensor(y))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("metric", LABELLED)
def test_nothing_to_score_is_an_error(metric):
    with pytest.raises(ValueError, match=r"probs is empty, got shape \(0, 3\)"):
        metric(torch.empty(0, 3), torch.empty(0, dtype=torch.long))
    with pytest.raises(ValueError, match="y is empty: every label is ignore_index=255"):
        metric(torch.eye(2), torch.tensor([255, 255]), ignore_index=255)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_rounding_of_a_softmax_over_a_thousand_classes_is_forgiven_and_one_percent_more_is_not(dtype):
    generator = torch.Generator().manual_seed(16)
    probs = (3 * torch.randn(50, 1000, generator=generator)).softmax(1).to(dtype)
    y = torch.zeros(50, dtype=torch.long)
    metrics.brier(probs, y)
    off = 0.01 if dtype != torch.bfloat16 else 0.05
    with pytest.raises(ValueError, match="sum to one"):
        metrics.brier(probs * (1 + off), y)


def test_booleans_and_small_integers_are_labels():
    probs = torch.tensor([[0.3, 0.7], [0.9, 0.1]])
    for kind in (torch.bool, torch.uint8, torch.int32):
        assert metrics.accuracy(probs, torch.tensor([1, 1]).to(kind)).item() == 0.5
