"""How many modules of the package a command runs through: a reader who follows one search or one add meets no more than these."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from promptdsi import Corpus

# Words and passages added four modules to a search (14 before) and nine to an add (35; the aim is 30); what `sync` and `add` share of
# checking arrivals is one more. Checking what an index from a stranger holds before it is used added ten and thirteen, passages that may
# lie on other machines two. Manifests that say what changed since another one (deltas, their files, seals), tags, upkeep and files of rows
# added five and six. What a manifest says of a corpus has a file, and an add merges small corpora: one and two. From here both only shrink.
MAX_SEARCH, MAX_ADD = 36, 68
MAX_SEARCH_INDEX, MAX_SEARCH_CLI = 18, 3  # of them in promptdsi/index and promptdsi/cli
TRACED = """
import json, sys
from pathlib import Path
import promptdsi
package = Path(promptdsi.__file__).parent
modules = set()
def note(frame, event, argument):
    code = frame.f_code
    if event == "call" and code.co_filename.startswith(str(package)) and not importing(frame):
        modules.add(Path(code.co_filename).relative_to(package).as_posix())
def importing(frame):
    # Module and class bodies, and what they call (decorators, registration), run once at import.
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__", "").startswith("promptdsi"):
            return True
        frame = frame.f_back
    return False
from promptdsi.cli.main import main
sys.argv = ["promptdsi", *sys.argv[1:]]
sys.setprofile(note)
import threading
threading.setprofile(note)
try:
    main()
except SystemExit as ended:
    code = ended.code
finally:
    sys.setprofile(None)
assert not code, code
print(json.dumps(sorted(modules)), file=sys.stderr)
"""


def modules_run_by(*words: str | Path) -> list[str]:
    """The modules of the package whose functions run during a command, import-time code excluded."""
    command = [sys.executable, "-c", TRACED, *map(str, words)]
    outcome = subprocess.run(command, capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stderr
    listed: list[str] = json.loads(outcome.stderr.splitlines()[-1])
    return listed


def test_a_search_runs_through_few_modules(place: Path) -> None:
    modules = modules_run_by("search", place, "what is water made of")
    print(len(modules), *modules, sep="\n")
    assert len(modules) <= MAX_SEARCH, modules
    assert sum(name.startswith("index/") for name in modules) <= MAX_SEARCH_INDEX, modules
    assert sum(name.startswith("cli/") for name in modules) <= MAX_SEARCH_CLI, modules


def test_an_add_runs_through_few_modules(place: Path, corpora: list[Corpus], tmp_path: Path) -> None:
    corpora[2].write(tmp_path / "d2")
    modules = modules_run_by("add", place, tmp_path / "d2", "--device", "cpu")
    print(len(modules), *modules, sep="\n")
    assert len(modules) <= MAX_ADD, modules
