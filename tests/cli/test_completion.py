"""Shell completion: the script that is installed, run by a real bash, and the values that are completed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from promptdsi.cli import add_command
from promptdsi.index.method_io import EFFORTS
from promptdsi.methods.promptdsi import PRESETS
from promptdsi.model.prompts.strategy import strategies

# What bash does on Tab: the words so far, then the function that the script registered.
TAB = """
source ./script
COMP_WORDS=({words}); COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))
$(complete -p promptdsi | grep -o '_[a-z_]*completion') promptdsi
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture
def command(tmp_path: Path) -> dict[str, str]:
    """An environment with `promptdsi` on the path, as installed, in which the shell is named and not detected."""
    program = tmp_path / "bin" / "promptdsi"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\nfrom promptdsi.cli.main import main\nmain()\n")
    program.chmod(0o755)
    return os.environ | {
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1",
    }


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("promptdsi cre", ["create"]),
        ("promptdsi un", ["undelete"]),
        ("promptdsi bench pl", ["plan"]),
        ("promptdsi serve --allow-w", ["--allow-write"]),
        ("promptdsi create --effort ''", ["quick", "normal", "full"]),
        ("promptdsi create index corpus --preset p", ["paper"]),
        ("promptdsi search --engine i", ["int8"]),
    ],
)
def test_bash_completes(words: str, expected: list[str], command: dict[str, str], tmp_path: Path) -> None:
    script = subprocess.run(["promptdsi", "--show-completion", "bash"], env=command, capture_output=True, text=True, check=True).stdout
    (tmp_path / "script").write_text(script)
    tab = ["bash", "--norc", "-c", TAB.format(words=words)]
    completed = subprocess.run(tab, env=command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert completed.stdout.split() == expected, completed.stderr


@pytest.mark.parametrize(
    ("shell", "file"), [("bash", ".bashrc"), ("zsh", ".zfunc/_promptdsi"), ("fish", ".config/fish/completions/promptdsi.fish")]
)
def test_completion_is_installed(shell: str, file: str, command: dict[str, str], tmp_path: Path) -> None:
    done = subprocess.run(["promptdsi", "--install-completion", shell], env=command, capture_output=True, text=True, check=True)
    assert "promptdsi" in (tmp_path / file).read_text() and "installed" in done.stdout


def test_the_values_are_those_there_are() -> None:
    assert set(add_command.PRESETS) == set(PRESETS) and list(add_command.EFFORTS) == list(EFFORTS)
    assert set(add_command.STRATEGIES) == {name for name, kind in strategies().items() if kind.__module__.startswith("promptdsi.")}
