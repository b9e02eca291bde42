"""Numbers as the console writes them: its functions, run by Node.js."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

CONSOLE = Path(__file__).parents[2] / "console"
DURATIONS = {
    0: "0 ms",
    0.0384: "38 ms",
    0.9994: "999 ms",
    0.9996: "1.00 s",
    1.879: "1.88 s",
    9.994: "9.99 s",
    9.996: "10.0 s",
    59.94: "59.9 s",
    59.96: "1 min 0 s",
    3599.6: "1 h 0 min",
    -0.2: "0 ms",
    -5: "0 ms",
}


def test_a_duration_is_rounded_before_its_unit_is_chosen_and_is_never_negative(tmp_path: Path) -> None:
    entry, bundle = tmp_path / "entry.ts", tmp_path / "bundle.cjs"
    module = json.dumps(str(CONSOLE / "src" / "components" / "numbers.tsx"))
    calls = f"console.log(JSON.stringify({json.dumps(list(DURATIONS))}.map(duration)))"
    entry.write_text(f"import {{ duration }} from {module};\n{calls}", encoding="utf-8")
    esbuild = CONSOLE / "node_modules" / ".bin" / "esbuild"
    options = ["--bundle", "--platform=node", "--log-level=error", f"--outfile={bundle}"]
    subprocess.run([esbuild, entry, *options], check=True, cwd=CONSOLE)
    written = subprocess.run(["node", bundle], check=True, capture_output=True, text=True).stdout
    assert json.loads(written) == list(DURATIONS.values())
