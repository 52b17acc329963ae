"""BF16 and MXFP4 as numpy arrays: encode and decode.

BF16 is kept as uint16 bit patterns. MXFP4 (OCP microscaling) stores blocks of 32 values along the
last axis: 16 bytes of E2M1 codes, low nibble first, and one E8M0 byte s for the scale 2^(s - 127).
"""

import numpy as np

BLOCK = 32
# E2M1 magnitudes by code; code + 8 is the negative.
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
# Twice a magnitude (0, 1, 2, 3, 4, 6, 8, 12) -> its code.
_CODE_OF_DOUBLE = np.array([0, 1, 2, 3, 4, 4, 5, 5, 6, 6, 6, 6, 7], np.uint8)


def to_bf16(x):
    """float32 -> BF16 bit patterns, round to nearest even. Finite input only."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))) >> 16).astype(np.uint16)


def from_bf16(bits):
    """BF16 bit patterns -> float32, exact."""
    return (np.asarray(bits, np.uint16).astype(np.uint32) << 16).view(np.float32)


def _round_to_e2m1(x):
    """|x| rounded to the nearest E2M1 magnitude, ties to the even code, saturating at 6."""
    a = np.minimum(np.abs(x), np.float32(6))
    step = np.where(a < 2, np.float32(0.5), np.where(a < 4, np.float32(1), np.float32(2)))
    return np.rint(a / step) * step


def encode_mxfp4(x):
    """float32 [..., K] -> blocks uint8 [..., K/32, 16], scales uint8 [..., K/32].

    K must be a multiple of 32. Of three neighbouring scales each block takes the one with the least
    squared error: the exponent that brings its largest magnitude into [4, 8), where values above 6
    saturate, one below, one above.
    """
    if x.shape[-1] % BLOCK:
        raise ValueError(f"MXFP4 needs a multiple of {BLOCK} columns, found {x.shape[-1]}")
    x = np.ascontiguousarray(x, np.float32).reshape(*x.shape[:-1], -1, BLOCK)
    largest = np.abs(x).max(-1)
    exponent = np.frexp(largest)[1] - 3  # frexp: largest = m 2^e, m in [0.5, 1)
    exponent = np.clip(np.where(largest > 0, exponent, 0), -126, 126)
    best_error = np.full(largest.shape, np.inf, np.float32)
    best_exponent = exponent.copy()
    best_magnitude = np.zeros_like(x)
    for offset in (0, 1, -1):
        scale = np.ldexp(np.float32(1), exponent + offset).astype(np.float32)[..., None]
        magnitude = _round_to_e2m1(x / scale)
        error = np.square(magnitude * scale - np.abs(x)).sum(-1)
        better = error < best_error
        best_error[better] = error[better]
        best_exponent[better] = exponent[better] + offset
        best_magnitude[better] = magnitude[better]
    codes = _CODE_OF_DOUBLE[(best_magnitude * 2).astype(np.uint8)] | (
        np.signbit(x).astype(np.uint8) << 3
    )
    return codes[..., 0::2] | (codes[..., 1::2] << 4), (best_exponent + 127).astype(np.uint8)


def decode_mxfp4(blocks, scales):
    """blocks uint8 [..., K/32, 16], scales uint8 [..., K/32] -> float32 [..., K], exact."""
    values = np.empty((*blocks.shape[:-1], BLOCK), np.float32)
    values[..., 0::2] = E2M1[blocks & 15]
    values[..., 1::2] = E2M1[blocks >> 4]
    values *= np.ldexp(np.float32(1), scales.astype(np.int32) - 127)[..., None]
    return values.reshape(*blocks.shape[:-2], -1)
