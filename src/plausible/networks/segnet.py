"""SegNet (Badrinarayanan, Kendall & Cipolla, 2017) with the dropout of Bayesian SegNet (Kendall et al., 2015)."""

from collections.abc import Sequence

from torch import Tensor, nn

from plausible.networks.convolutions import HeConv2d, max_pool_with_places, unpool
from plausible.networks.norms import norm_named
from plausible.networks.sizes import positive_int, share

DROPOUT_AT = ("none", "encoder", "decoder", "encoder-decoder", "central", "centre", "classifier")


class SegNet(nn.Module):
    """A class for each pixel: an encoder as in VGG-16 and its mirror image, which undoes each pool at its own places.

    Every 3 x 3 convolution but the last is followed by a norm and ReLU. With the default sizes and 11 classes it has
    29.4 million weights; it takes images of any height and width.

    Args:
        classes: the number of outputs for each pixel.
        channels: the number of image channels.
        norm: "batch", "group" or "filter-response".
        width: the channels of the first stage; each later one has twice as many, up to eight times this. The papers
            have 64; 4 to 16 run on a CPU.
        stages: the number of convolutions in each stage of the encoder.
        dropout: the share of values dropped.
        dropout_at: after which stages, in the paper's words: "none"; every "encoder" stage; every "decoder" stage but
            the last, which makes the logits; "encoder-decoder" for both; "central" for the deeper half of both;
            "centre" between the two; "classifier" before the last convolution.
    """

    def __init__(
        self,
        classes: int = 11,
        channels: int = 3,
        norm: str = "batch",
        *,
        width: int = 64,
        stages: Sequence[int] = (2, 2, 3, 3, 3),
        dropout: float = 0.5,
        dropout_at: str = "central",
    ):
        super().__init__()
        positive_int("width", width)
        share("dropout", dropout)
        if not stages:
            raise ValueError("stages must have at least one number, got none")
        if dropout_at not in DROPOUT_AT:
            raise ValueError(f"dropout_at must be one of {', '.join(DROPOUT_AT)}, got {dropout_at!r}")
        counts = [positive_int("stages", count) for count in stages]
        widths = [width * min(2**i, 8) for i in range(len(counts))]
        before = [positive_int("channels", channels), *widths[:-1]]
        encoder_ends, decoder_ends = _dropped(dropout_at, len(counts))
        self.encoder = nn.ModuleList(
            nn.Sequential(*_convolutions([inputs] + [outputs] * count, norm))
            for inputs, outputs, count in zip(before, widths, counts, strict=True)
        )
        self.encoder_dropout = nn.ModuleList(
            nn.Dropout(dropout if i in encoder_ends else 0.0) for i in range(len(counts))
        )
        # The decoder's stages are listed from the outermost, like those of the encoder that they mirror.
        inner = [widths[0], *widths[:-1]]  # what each hands on; the outermost ends in the classifier
        counts_inside = [counts[0] - 1, *counts[1:]]
        self.decoder = nn.ModuleList(
            nn.Sequential(
                *_convolutions([inputs] * count + [outputs] if count else [inputs], norm),
                nn.Dropout(dropout if i in decoder_ends else 0.0),
            )
            for i, (inputs, outputs, count) in enumerate(zip(widths, inner, counts_inside, strict=True))
        )
        self.classifier = HeConv2d(widths[0], positive_int("classes", classes), 3, padding=1)
        self.config = {
            "classes": classes,
            "channels": channels,
            "norm": norm,
            "width": width,
            "stages": list(counts),
            "dropout": dropout,
            "dropout_at": dropout_at,
        }

    def forward(self, x: Tensor) -> Tensor:
        """Logits of shape (N, classes, height, width) for images of shape (N, channels, height, width)."""
        pools = []
        for stage, dropped, decoder in zip(self.encoder, self.encoder_dropout, self.decoder, strict=True):
            x = stage(x)
            size = x.shape[-2:]
            x, places = max_pool_with_places(x)
            x = dropped(x)
            pools.append((decoder, places, size))
        for decoder, places, size in reversed(pools):
            x = decoder(unpool(x, places, size))
        return self.classifier(x)


def _convolutions(widths: Sequence[int], norm: str) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for inputs, outputs in zip(widths, widths[1:], strict=False):
        layers += [HeConv2d(inputs, outputs, 3, padding=1), norm_named(norm, outputs), nn.ReLU()]
    return layers


def _dropped(where: str, depth: int) -> tuple[set[int], set[int]]:
    """The stages of the encoder and of the decoder that end in dropout."""
    every, none = set(range(depth)), set[int]()
    deeper = set(range(depth // 2, depth))
    return {
        "none": (none, none),
        "encoder": (every, none),
        "decoder": (none, every - {0}),
        "encoder-decoder": (every, every - {0}),
        "central": (deeper, deeper - {0}),
        "centre": ({depth - 1}, none),
        "classifier": (none, {0}),
    }[where]
