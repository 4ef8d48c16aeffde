"""Random crops and flips of images, drawn anew for every batch in training.

As the programs of Delta-SGD and FedExP for CIFAR-10: pad by 4 pixels, crop to the former size, flip half of the images.
Deviations: the padding is the mean pixel of normalised images, where the programs pad with black.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class CropFlip(nn.Module):
    """Shift images by up to `pad` pixels and flip half of them, in training only.

    Args:
        pad: largest shift.
        border: what comes in at the borders: "constant", zeros, or "reflect", the image mirrored.

    Example:
        >>> layer = fs.models.CropFlip().eval()
        >>> layer(torch.ones(2, 3, 8, 8)).sum()
        tensor(384.)
    """

    def __init__(self, pad: int = 4, border: Literal["constant", "reflect"] = "constant") -> None:
        super().__init__()
        self.pad, self.border = pad, border

    def forward(self, inputs: Tensor) -> Tensor:
        if not self.training:
            return inputs
        n, _, height, width = inputs.shape
        padded = F.pad(inputs, (self.pad,) * 4, mode=self.border)
        top, left = (torch.randint(2 * self.pad + 1, (n, 1), device=inputs.device) for _ in range(2))
        flip = torch.rand(n, 1, device=inputs.device) < 0.5
        down, across = torch.arange(height, device=inputs.device), torch.arange(width, device=inputs.device)
        rows = top + down  # [n, height]
        columns = left + torch.where(flip, width - 1 - across, across)  # [n, width]
        image = torch.arange(n, device=inputs.device)[:, None, None]
        return padded[image, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
