"""The whole harness on one device, as a script: every rule and every architecture against one example at a time.

    PYTHONPATH=src:. python -m tests.sgd.gpu_harness [--device cuda] [--only NAME ...] [--compiled] [--quick]

Needs torch, numpy and scipy; architectures of ``transformers`` and ``peft`` are left out, with a message, where those
are missing. Prints one line per case and exits with 1 if any error is over its tolerance.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
import warnings

import torch
from tests.sgd.harness import TOLERANCE, build, compare
from tests.sgd.operations import OPERATIONS
from tests.sgd.zoo import ZOO, table

from tacit.sgd import NotCompiled


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", nargs="*", default=[""], help="run only cases whose name contains one of these")
    parser.add_argument("--compiled", action="store_true", help="through the compiled step")
    parser.add_argument("--quick", action="store_true", help="float32 and flat clipping only")
    parser.add_argument("--csv", default=None, help="also write the table here")
    parser.add_argument("--table", action="store_true", help="print the table of architectures for the guide")
    options = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    # The truth of a single example and the batch must be computed with the same arithmetic: no TensorFloat-32.
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    for module in ("zoo_more", "zoo_transformers"):
        try:
            importlib.import_module(f"tests.sgd.{module}")
        except ImportError as missing:
            print(f"left out: {module} ({missing})")
    if "hf-gpt2" in ZOO and "peft-lora" not in ZOO:
        print("left out: the models adapted by peft (not installed)")
    if options.table:
        print(table())
        return 0
    cases = {f"rule: {label}": builder for label, (_, builder) in OPERATIONS.items()}
    cases |= {name: builder for name, (_, builder) in ZOO.items()}
    print(f"torch {torch.__version__} on {options.device}")
    print(f"{'case':44s} {'type':8s} {'clipping':10s} {'sum':>9s} {'norms':>9s} {'seconds':>8s}")
    rows, failed = [], []
    for name, builder in cases.items():
        if not any(part in name for part in options.only):
            continue
        for dtype in (torch.float32,) if options.quick else (torch.float32, torch.float64):
            for clipping in ("flat",) if options.quick else ("flat", "per_layer"):
                start = time.perf_counter()
                label = f"{name:44s} {str(dtype)[6:]:8s} {clipping:10s}"
                try:
                    case = build(builder, dtype, options.device)
                except (ImportError, AttributeError, TypeError, ValueError) as error:
                    print(f"{label} left out: {type(error).__name__}: {error}")  # another version of transformers, say
                    continue
                try:
                    with warnings.catch_warnings(record=True) as told:
                        warnings.simplefilter("always", NotCompiled)
                        errors = compare(case, clipping, compile=options.compiled)
                        why = [f"  ({w.message})" for w in told if w.category is NotCompiled]
                except Exception as error:  # noqa: BLE001 a script that reports every case, not only the first that breaks
                    failed.append(name)
                    print(f"{label} {type(error).__name__}: {error}")
                    continue
                good = errors.worst <= TOLERANCE[case.notes.get("computes_in", dtype)]
                took = time.perf_counter() - start
                note = ("" if good else "  TOO LARGE") + "".join(why[:1])
                print(f"{label} {errors.total:9.1e} {errors.norms:9.1e} {took:8.2f}{note}", flush=True)
                rows.append(f"{name},{str(dtype)[6:]},{clipping},{errors.total:.3e},{errors.norms:.3e}")
                if not good:
                    failed.append(name)
    print(f"{len(rows)} comparisons, {len(cases)} cases, {len(set(failed))} failed {sorted(set(failed)) or ''}")
    if options.csv:
        with open(options.csv, "w", encoding="utf-8") as file:
            file.write("\n".join(["case,type,clipping,sum_error,norm_error", *rows]) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
