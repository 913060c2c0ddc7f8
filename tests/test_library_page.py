"""The recipes of docs/library.md are run on two stages; one that stops half-way resumes exactly."""

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

PAGE = (Path(__file__).parent.parent / "docs/library.md").read_text(encoding="utf-8")
CALLS = [
    "clip()",
    "bfloat16()",
    "float16()",
    "accumulate()",
    "load()",
    "schedule(4)",
    "schedule(2)",
    "schedule(4, 'checkpoint')",
]
MAIN = f"""

def everything():
    return [{", ".join(CALLS)}, repr(start()[0])]


if __name__ == "__main__":
    import json
    print(json.dumps(launch(everything, stages=2)))
"""


def test_the_recipes_run(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", PAGE, flags=re.S)
    recipes = [
        name for block in blocks[1:] for name in re.findall(r"^def (\w+)", block, flags=re.M)
    ]
    assert {call.partition("(")[0] for call in CALLS} == set(recipes)
    (tmp_path / "page.py").write_text("\n\n".join(blocks) + MAIN, encoding="utf-8")
    environment, command = os.environ | {"CUDA_VISIBLE_DEVICES": ""}, [sys.executable, "page.py"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    first, second = json.loads(done.stdout.splitlines()[-1])
    assert first[:-1] == second[:-1], "losses, norms, scales and rates are the same on every rank"
    *results, shown = first
    found = dict(zip(CALLS, results, strict=True))
    for call, result in found.items():
        loss = result[0] if isinstance(result, list) else result
        assert math.isfinite(loss), call
        assert loss < 2, call
    assert found["schedule(4)"] == found["schedule(4, 'checkpoint')"] != found["schedule(2)"]
    assert shown in PAGE
