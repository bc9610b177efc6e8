"""Per-example clipping on a GPU: the same harness, and the bound with reduced-precision products."""

from __future__ import annotations

import pytest
import torch
from tests.sgd import gpu_harness, zoo
from tests.sgd.harness import build, single_gradients

from tacit import sgd

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_the_whole_harness_passes_on_the_device():
    assert gpu_harness.main(["--device", "cuda"]) == 0


@pytest.mark.parametrize("name", ["cnn", "wrn-groupnorm", "vit-class-token", "gpt-tied"])
def test_tensor_float_products_stay_inside_the_bound(name):
    case = build(zoo.ZOO[name][1], torch.float32, "cuda")
    torch.backends.cudnn.allow_tf32 = True
    torch.set_float32_matmul_precision("high")
    try:
        for k in range(3):
            mask = torch.arange(len(next(iter(case.batch.values())))) == k
            sums, _ = sgd.clipped_grad(case.model, case.loss, case.batch, clip_norm=1e-2, mask=mask.cuda())
            assert torch.stack([v.double().norm() for v in sums.values()]).norm() <= 1e-2 * (1 + 1e-6)
    finally:
        torch.set_float32_matmul_precision("highest")
    assert single_gradients(case)
