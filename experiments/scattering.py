"""What features of a picture need no one's data? The wavelet scattering transform (Bruna & Mallat 2013).

Moduli of Morlet wavelet responses, averaged over a window: first order at J scales and L angles, second order at each
pair of rising scales. Fixed filters, nothing learned, so the transform of a record costs no privacy. For J = 2, L = 8 a
picture becomes 81 maps of a quarter of its width.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

SIGMA, XI = 0.8, 3 * math.pi / 4  # width and centre frequency of the finest wavelet, as usual for images


def channels(scales: int = 2, angles: int = 8) -> int:
    """How many maps there are.

    >>> channels()
    81
    """
    return 1 + angles * scales + angles**2 * scales * (scales - 1) // 2


def _gabor(size: int, sigma: float, theta: float, xi: float, slant: float) -> npt.NDArray[np.complex128]:
    """A windowed wave on a periodic grid, in space."""
    found = np.zeros((size, size), dtype=np.complex128)
    turn = np.array([[math.cos(theta), -math.sin(theta)], [math.sin(theta), math.cos(theta)]])
    curve = turn @ np.diag([1.0, slant**2]) @ turn.T / (2 * sigma**2)
    for shift_x in range(-2, 3):
        for shift_y in range(-2, 3):
            x, y = np.mgrid[shift_x * size : (shift_x + 1) * size, shift_y * size : (shift_y + 1) * size]
            window = curve[0, 0] * x * x + (curve[0, 1] + curve[1, 0]) * x * y + curve[1, 1] * y * y
            found += np.exp(-window + 1j * xi * (x * math.cos(theta) + y * math.sin(theta)))
    return found / (2 * math.pi * sigma**2 / slant)


def _morlet(size: int, sigma: float, theta: float, xi: float, slant: float) -> npt.NDArray[np.complex128]:
    """A windowed wave with mean zero."""
    wave, window = _gabor(size, sigma, theta, xi, slant), _gabor(size, sigma, theta, 0.0, slant)
    return np.asarray(wave - wave.sum() / window.sum() * window)


class Scattering:
    """The transform of square pictures of one size, on one device.

    >>> Scattering(28)(torch.rand(2, 1, 28, 28)).shape
    torch.Size([2, 81, 7, 7])
    """

    def __init__(self, size: int, scales: int = 2, angles: int = 8, device: str = "cpu") -> None:
        if size % 2**scales:
            raise ValueError(f"the width must be a multiple of {2**scales}, not {size}")
        self.size, self.scales, self.angles = size, scales, angles
        self.pad = 2**scales
        whole = size + 2 * self.pad
        slant = 4.0 / angles
        waves = [
            [
                _morlet(whole, SIGMA * 2**j, (angles / 2 - 1 - k) * math.pi / angles, XI / 2**j, slant)
                for k in range(angles)
            ]
            for j in range(scales)
        ]
        as_filter: dict[str, Any] = {"dtype": torch.float32, "device": device}
        # Fourier transforms of the wavelets are real.
        self.waves = torch.tensor(np.real(np.fft.fft2(np.array(waves), axes=(-2, -1))), **as_filter)
        # The window is a product of two, so that averaging at every 2^J-th pixel is a matrix on each side.
        grid, width = np.arange(whole), SIGMA * 2 ** (scales - 1)
        wrapped = sum(np.exp(-((grid + k * whole) ** 2) / (2 * width**2)) for k in range(-2, 3))
        window = np.asarray(wrapped) / (math.sqrt(2 * math.pi) * width)
        centres = np.arange(self.pad, self.pad + size, 2**scales)
        self.window = torch.tensor(window[(grid[None, :] - centres[:, None]) % whole], **as_filter)

    def __call__(self, images: Tensor) -> Tensor:
        """Maps of a batch ``(B, C, H, W)``: ``(B, C · maps, H / 2^J, W / 2^J)``."""
        batch, colours = images.shape[:2]
        x = torch.nn.functional.pad(images.float(), [self.pad] * 4, mode="reflect").flatten(0, 1)
        maps = [self._averaged(x)[:, None]]
        spectrum = torch.fft.fft2(x)
        first = []
        for j in range(self.scales):
            moduli = torch.fft.ifft2(spectrum[:, None] * self.waves[j]).abs()
            maps.append(self._averaged(moduli))
            first.append(torch.fft.fft2(moduli) if j + 1 < self.scales else None)
        for j in range(self.scales):
            for finer in first[:j]:
                assert finer is not None
                moduli = torch.fft.ifft2(finer[:, :, None] * self.waves[j]).abs().flatten(1, 2)
                maps.append(self._averaged(moduli))
        found = torch.cat(maps, 1)
        return found.reshape(batch, colours * found.shape[1], *found.shape[2:])

    def _averaged(self, maps: Tensor) -> Tensor:
        return self.window @ maps @ self.window.T


def scatter(images: Tensor, device: str = "cpu", batch: int = 256) -> Tensor:
    """The maps of many pictures, in pieces, on the device."""
    transform = Scattering(images.shape[-1], device=device)
    return torch.cat([transform(part.to(device)) for part in images.split(batch)])
