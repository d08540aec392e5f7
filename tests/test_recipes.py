"""The recipes of CONTRIBUTING.md work: each code block is put into its place in a copy of the package, and the suites run there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^```python (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SUITES = ("tests/recipes.py", "tests/model/test_strategies.py", "tests/methods/test_contract.py")


def test_the_recipes_work(tmp_path: Path) -> None:
    for name in ("promptdsi", "experiments", "tests"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    blocks = BLOCK.findall((ROOT / "CONTRIBUTING.md").read_text("utf-8"))
    folders = {Path(name).parent.as_posix().removeprefix("promptdsi/") for name, _ in blocks}
    assert folders == {
        *("corpus/sources", "corpus/formats", "corpus/generators", "evaluation", "model/prompts", "methods", "cli", "experiments/reports")
    }
    for name, code in blocks:
        path = tmp_path / name
        path.write_text(f"{path.read_text('utf-8')}\n\n{code}" if path.exists() else code, "utf-8")
    main = tmp_path / "promptdsi/cli/main.py"
    listed = main.read_text("utf-8").replace('    "demo": demo,\n', '    "demo": demo,\n    "sizes": sizes,\n')
    main.write_text(listed.replace("import typer\n", "import typer\n\nfrom promptdsi.cli.sizes_command import sizes\n", 1), "utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "recipe or corpus-mean or dense-titles", *SUITES]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")} | {"PYTHONPATH": str(tmp_path)}
    outcome = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
