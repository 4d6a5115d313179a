"""Indices out of bounds are errors, not addresses: torch's kernels for these ops check none.

Without the checks each case ends the process with a segmentation fault, so all run in another.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("torch")

FAR = 1 << 40
HEAD = f"""param %far : i64[1] in $far = [{FAR}]
param %zero : i64[1] in $zero = [0]
param %row : i64[1, 1] in $row = [{FAR}]
param %pool : i64[1, 1, 1, 1] in $pool = [{FAR}]
input %g : f32[1, 4] in $g
input %v : f32[1] in $v
input %one : f32[1, 1, 1, 1] in $one
input %four : f32[1, 1, 2, 2] in $four
input %w : f32[1] in $w
input %c : f32[2, 3] in $c
input %p : f32[2, 1, 3] in $p
"""

BAGS = "aten._embedding_bag_dense_backward(%g, {}, {}, %zero, %zero, 3, false, 0, none)"

CASES = {
    "rows": f"%y = {BAGS.format('%far', '%zero')} : f32[3, 4] in $y",
    "bags": f"%y = {BAGS.format('%zero', '%far')} : f32[3, 4] in $y",
    "windows": "%y = aten.max_pool2d_with_indices_backward(%one, %four, [2, 2], [2, 2], [0, 0],"
    " [1, 1], false, %pool) : f32[1, 1, 2, 2] in $y",
    "adaptive windows": "%y = aten.adaptive_max_pool2d_backward(%one, %four, %pool)"
    " : f32[1, 1, 2, 2] in $y",
    "classes": "%y, %a = aten._ctc_loss(%p, %row, [2], [1]) : f32[1] in $y, f32[1, 2, 3] in $a",
    "coordinates": "%s = aten._sparse_coo_tensor_unsafe(%row, %v, size = [4])"
    " : f32[4; 0] in $s\n%y = aten.add(%s, %s) : f32[4; 0] in $y",
    "gradients": "%s = aten.embedding_sparse_backward(%g, %far, 3, -1, false)"
    " : f32[3, 4; 0, 0] in $s\n%y = aten.add(%s, %s) : f32[3, 4; 0, 0] in $y",
    "channels": "%y, %m, %d = aten.native_batch_norm(%c, none, none, %v, %w, true, 0.1, 1e-05)"
    " : f32[2, 3] in $y, f32[3] in $m, f32[3] in $d",
    "views": "%y = aten._reshape_alias(%v, [1024], [1024]) : f32[1024; 1024] in $v",
}

PROGRAM = """import sys
from irgraph.diagnostics import IrgraphError
from irgraph.execute import execute
from irgraph.text import parse
try:
    execute(parse(sys.stdin.read()))
except IrgraphError as error:
    sys.exit(error.diagnostics[0].message)
"""


@pytest.mark.parametrize("case", CASES)
def test_an_index_out_of_bounds_is_an_error(case: str) -> None:
    text = f'model "m" {{ format = 2 }}\n\ndevice @gpu0 "v100"\n{HEAD}\n{CASES[case]}\n'
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], input=text, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr
    assert "out of bounds" in done.stderr, done.stderr
