"""Compression: floats travel, and are reduced, in a shorter type; results come back in the tensor's own."""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf

from fusionctl.errors import UsageError


@dataclass(frozen=True, slots=True)
class Compressor:
    """Casts floating-point tensors to `wire`; None leaves them as they are.  Other types pass unchanged."""

    wire: tf.DType | None

    def compress(self, tensor: tf.Tensor) -> tf.Tensor:
        """What is sent for a tensor."""
        if self.wire is None or not tensor.dtype.is_floating or tensor.dtype.size <= self.wire.size:
            return tensor
        return tf.cast(tensor, self.wire)

    def decompress(self, tensor: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
        """What was received, in the dtype that the tensor had before `compress`."""
        return tensor if tensor.dtype == dtype else tf.cast(tensor, dtype)


def checked_compression(compression: object) -> Compressor:
    """The compressor; UsageError for what is none."""
    if not isinstance(compression, Compressor):
        raise UsageError(f"compression is {compression!r}; give Compression.none, Compression.fp16 or Compression.bf16")
    return compression


class Compression:
    """The choices: `none`, `fp16` (11 bits of precision, up to 65504) and `bf16` (8 bits, the range of float32).

    The engine accumulates both 16-bit types in float32 and rounds once.
    """

    none = Compressor(None)
    fp16 = Compressor(tf.float16)
    bf16 = Compressor(tf.bfloat16)
