"""One dense gated MLP -> the experts and the router of a mixture that computes the same function.

The intermediate width is cut into `slices` equal parts. Experts s and s + slices are two copies of
slice s; the router rows of the second copy are the negated rows of the first. So the logits of the
two copies are +x and -x, the `slices` positive ones win, and exactly one copy of each slice is
chosen: which one depends on the token. The router is so small that the softmax over the chosen
logits gives 1 / slices to within rounding, and `down` is scaled by `slices` to make up for it.

gpt-oss computes (up + 1) * gate * sigmoid(1.702 gate) with gate and up clamped at swiglu_limit.
With gate / 1.702, up x 1.702 / 16 and an up bias of -1 that is silu(gate) * up / 16, and `down`
takes the 16 back. The 16 keeps the largest activations far inside the clamp and is exact in BF16.
1.702 goes to `up` because `down` then only has factors of two: the source's 4-bit blocks mostly
keep their extremes as BF16 numbers, and rounding them anew costs more in `down` than in `up` (rms
logit error 0.056 against 0.041).
"""

from dataclasses import dataclass

import numpy as np

from demo_model.number_formats import encode_mxfp4, to_bf16
from demo_model.safetensors_file import TensorSpec

ROUTER_STD = 1e-4
ROUTER_SEED = 20240917
SWISH_SLOPE = 1.702
UP_DIVISOR = 16.0
SWIGLU_LIMIT = 1000.0


@dataclass(frozen=True)
class Format:
    """A checkpoint format: its name on the command line, and how the MLP is cut."""

    name: str
    model_type: str
    slices: int
    mxfp4: bool

    @property
    def experts(self):
        return 2 * self.slices


FORMATS = {
    f.name: f
    for f in (
        Format("gpt-oss-bf16", "gpt_oss", slices=4, mxfp4=False),
        Format("mixtral-bf16", "mixtral", slices=8, mxfp4=False),
        Format("gpt-oss-mxfp4", "gpt_oss", slices=4, mxfp4=True),
    )
}
DEFAULT_FORMAT = "gpt-oss-bf16"


def router_rows(slices, hidden, layer):
    """The antisymmetric router, float32 [2 slices, hidden]; every layer draws its own."""
    random = np.random.default_rng([ROUTER_SEED, layer])
    rows = (random.standard_normal((slices, hidden)) * ROUTER_STD).astype(np.float32)
    return np.concatenate([rows, -rows])


def mlp_specs(form, layer, hidden, intermediate):
    """The tensors of one layer's mixture, in the order that mlp_tensors() yields them."""
    width, experts = intermediate // form.slices, form.experts
    if form.model_type == "mixtral":
        prefix = f"model.layers.{layer}.block_sparse_moe."
        specs = [TensorSpec(prefix + "gate.weight", "BF16", (experts, hidden))]
        for expert in range(experts):
            name = f"{prefix}experts.{expert}."
            specs.append(TensorSpec(name + "w1.weight", "BF16", (width, hidden)))
            specs.append(TensorSpec(name + "w2.weight", "BF16", (hidden, width)))
            specs.append(TensorSpec(name + "w3.weight", "BF16", (width, hidden)))
        return specs
    prefix = f"model.layers.{layer}.mlp."
    return [
        TensorSpec(prefix + "router.weight", "BF16", (experts, hidden)),
        TensorSpec(prefix + "router.bias", "BF16", (experts,)),
        *_gpt_oss_projection(form, prefix + "experts.gate_up_proj", 2 * width, hidden),
        *_gpt_oss_projection(form, prefix + "experts.down_proj", hidden, width),
    ]


def _gpt_oss_projection(form, name, rows, columns):
    """MXFP4 stores [E, out, in] in blocks along `in`; BF16 stores [E, in, out]."""
    bias = TensorSpec(name + "_bias", "BF16", (form.experts, rows))
    if not form.mxfp4:
        return [TensorSpec(name, "BF16", (form.experts, columns, rows)), bias]
    blocks = columns // 32
    return [
        TensorSpec(name + "_blocks", "U8", (form.experts, rows, blocks, 16)),
        TensorSpec(name + "_scales", "U8", (form.experts, rows, blocks)),
        bias,
    ]


def mlp_tensors(form, layer, gate, up, down):
    """Yields (name, array) of one layer's mixture.

    gate and up are float32 [intermediate, hidden], down is [hidden, intermediate].
    """
    names = (spec.name for spec in mlp_specs(form, layer, gate.shape[1], gate.shape[0]))
    make = _mixtral_arrays if form.model_type == "mixtral" else _gpt_oss_arrays
    yield from zip(names, make(form, layer, gate, up, down), strict=True)


def _mixtral_arrays(form, layer, gate, up, down):
    yield to_bf16(router_rows(form.slices, gate.shape[1], layer))
    gates, ups = np.split(to_bf16(gate), form.slices), np.split(to_bf16(up), form.slices)
    downs = np.split(to_bf16(down * np.float32(form.slices)), form.slices, axis=1)
    for expert in range(form.experts):
        part = expert % form.slices
        yield gates[part]
        yield downs[part]
        yield ups[part]


def _gpt_oss_arrays(form, layer, gate, up, down):
    hidden, width = gate.shape[1], gate.shape[0] // form.slices
    yield to_bf16(router_rows(form.slices, hidden, layer))
    yield to_bf16(np.zeros(form.experts))

    gate_up = np.empty((form.slices, 2 * width, hidden), np.float32)
    gate_up[:, 0::2] = (gate / np.float32(SWISH_SLOPE)).reshape(form.slices, width, hidden)
    gate_up[:, 1::2] = (up * np.float32(SWISH_SLOPE / UP_DIVISOR)).reshape(
        form.slices, width, hidden
    )
    bias = np.zeros((form.experts, 2 * width), np.float32)
    bias[:, 1::2] = -1
    yield from _stored_projection(form, gate_up)
    yield to_bf16(bias)

    scaled = down * np.float32(UP_DIVISOR * form.slices)
    yield from _stored_projection(form, scaled.reshape(hidden, form.slices, width).swapaxes(0, 1))
    yield to_bf16(np.zeros((form.experts, hidden)))


def _stored_projection(form, weight):
    """weight [slices, out, in], both copies of it as the format stores them."""
    if form.mxfp4:
        for part in encode_mxfp4(weight):
            yield np.concatenate([part, part])
    else:
        part = to_bf16(weight.swapaxes(1, 2))
        yield np.concatenate([part, part])
