"""The shape of the package: imports point down only; files, functions and constructors stay small; `--help` stays light."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "promptdsi"
MODULES = sorted(PACKAGE.rglob("*.py"))
# From the bottom to the top. A folder may import from itself and from those before it.
LAYERS = ("ground", "corpus", "model", "engine", "training", "methods", "evaluation", "bench", "index", "serving", "cli")
# Too large still; the list only shrinks.
UNFINISHED: frozenset[str] = frozenset({"Manifest", "Report"})
MAX_FILE_LINES, MAX_FUNCTION_LINES, MAX_KEYWORDS, MAX_INHERITANCE = 300, 50, 15, 3


@functools.cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def layer_of(module: str) -> int:
    """The layer of `promptdsi.x.y`; single modules beside the folders are the ground layer."""
    parts = module.split(".")
    return LAYERS.index(parts[1]) if len(parts) > 1 and parts[1] in LAYERS else 0


def imports_of(path: Path) -> Iterator[str]:
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_imports_point_down_and_nothing_grows_too_long(path: Path) -> None:
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    if name not in {"promptdsi.__init__", "promptdsi.__main__", "promptdsi.client"}:
        for imported in imports_of(path):
            if imported.startswith("promptdsi."):
                assert layer_of(imported) <= layer_of(name), f"{name} imports {imported}, which is in a higher layer"
    text = path.read_text("utf-8")
    assert len(text.splitlines()) <= MAX_FILE_LINES or name in UNFINISHED
    assert ast.get_docstring(parse(path)), "a module opens by saying what it is"
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert (node.end_lineno or 0) - node.lineno < MAX_FUNCTION_LINES or name in UNFINISHED, f"{name}.{node.name} is too long"


def own_classes() -> dict[str, ast.ClassDef]:
    """Every class of the package by name; names are unique (test_words.py)."""
    trees = (parse(path) for path in MODULES)
    return {node.name: node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}


CLASSES = own_classes()


def lineage(name: str) -> list[str]:
    """The longest chain from a class up through its bases among our own classes."""
    bases = [ast.unparse(base).split("[")[0].rpartition(".")[2] for base in CLASSES[name].bases]
    return [name, *max((lineage(base) for base in bases if base in CLASSES and base != name), key=len, default=[])]


def constructor_keywords(name: str) -> set[str]:
    """Arguments of `__init__`, or the fields of a dataclass and its bases."""
    keywords: set[str] = set()
    for ancestor in lineage(name):
        node = CLASSES[ancestor]
        inits = [item for item in node.body if isinstance(item, ast.FunctionDef) and item.name == "__init__"]
        if inits:
            arguments = inits[0].args
            return keywords | {argument.arg for argument in arguments.args[1:] + arguments.kwonlyargs}
        if any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list):
            for item in node.body:
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                    hidden = "ClassVar" in ast.unparse(item.annotation) or "init=False" in ast.unparse(item)
                    keywords |= set() if hidden else {item.target.id}
    return keywords


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_classes_take_few_keywords_and_inherit_three_deep_at_most(name: str) -> None:
    assert len(constructor_keywords(name)) <= MAX_KEYWORDS or name in UNFINISHED, sorted(constructor_keywords(name))
    assert len(lineage(name)) <= MAX_INHERITANCE + 1, lineage(name)


def test_every_folder_is_a_known_layer() -> None:
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir() and (path / "__init__.py").exists()}
    assert folders <= set(LAYERS)


@pytest.mark.parametrize("words", [["--help"], ["data", "--help"], ["queries", "--help"], ["--version"]])
def test_help_imports_nothing_heavy(words: list[str]) -> None:
    heavy = ("torch", "transformers", "numpy", "sklearn", "ir_datasets", "safetensors")
    program = (
        "import sys\nfrom promptdsi.cli.main import main\n"
        f"sys.argv = ['promptdsi', *{words!r}]\n"
        f"try:\n    main()\nfinally:\n    loaded = [name for name in {heavy!r} if name in sys.modules]\n    assert not loaded, loaded\n"
    )
    started = time.perf_counter()
    outcome = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stderr
    assert time.perf_counter() - started < 10  # it takes a fifth of a second; the machine may be busy


def test_nothing_unpickles_and_remote_code_is_never_trusted() -> None:
    for path in MODULES:
        imported = set(imports_of(path))
        assert not {name for name in imported if name.split(".")[0] in {"pickle", "joblib", "dill", "shelve", "marshal"}}, path
        for node in ast.walk(parse(path)):
            if (
                isinstance(node, ast.Call)
                and ast.unparse(node.func).startswith("Auto")
                and ast.unparse(node.func).endswith("from_pretrained")
            ):
                given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
                assert given.get("trust_remote_code") == "False", f"{path}:{node.lineno}"


def test_an_index_changes_files_in_one_place_only() -> None:
    """Everything durable goes through `promptdsi.files`, where the tests can let it fail; the lock and a temporary SQLite apart."""
    changing = {"unlink", "rename", "replace", "rmdir", "mkdir", "write_bytes", "write_text", "touch", "symlink_to", "rmtree", "fdopen"}
    allowed = {("store.py", "rmdir"), ("store.py", "unlink")}  # taking back an empty folder of a create that failed
    for path in (PACKAGE / "index").glob("*.py"):
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in changing:
                call = (path.name, node.func.attr)
                strings = node.func.attr == "replace" and len(node.args) == 2  # str.replace
                assert call in allowed or strings or path.name == "export.py", f"{path}:{node.lineno} {node.func.attr}"


def test_no_test_hooks_the_process_all_tests_run_in() -> None:
    """An audit hook stays for good. Under coverage two threads that start together then fail now and then, in whatever test comes later
    (before Python 3.12, setting a trace function while another thread is in the hook is an error): hooks go into processes of their own."""
    for path in (ROOT / "tests").rglob("*.py"):
        calls = [node for node in ast.walk(parse(path)) if isinstance(node, ast.Call)]
        assert "sys.addaudithook" not in {ast.unparse(call.func) for call in calls}, path


def test_the_newcomers_files_are_there() -> None:
    for name in (
        "README.md",
        "LICENSE",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "CITATION.cff",
        "SECURITY.md",
        "promptdsi/py.typed",
        "docs/index.md",
    ):
        assert (ROOT / name).is_file(), name
    assert (ROOT / ".ci/run").read_text().strip().endswith("make test")
    assert "make test" in (ROOT / "README.md").read_text()


def test_nothing_runs_bfloat16_on_the_processor() -> None:
    """Some processors announce AMX and die of it; what must compute so runs in a child process (tests/training/test_stages.py)."""
    for path in [*MODULES, *(ROOT / "tests").rglob("*.py"), *(ROOT / "tools").rglob("*.py")]:
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("autocast") and node.args:
                assert ast.unparse(node.args[0]) != "'cpu'", path
