"""The law of the layers: imports go down only, and siblings on a row never import each other."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROWS = (
    {
        "errors",
        "_version",
        "_board",
        "_data",
        "_engine",
        "_kernels",
        "_lane",
        "_mpi",
        "_rows",
        "_shared",
        "_table",
        "_tf",
    },
    {"config", "request", "timeline"},
    {"plan"},
    {"control", "data", "fusion", "sim"},
    {"runtime", "calls", "forks", "job", "process_sets", "registry", "recorder", "slow_path"},
    {"arrays", "objects", "probes"},
    {"tensorflow"},
    {"keras", "cli"},
)
"""Modules and packages of fusionctl, lowest row first; the Keras wrapper stands on the ops for TensorFlow and NumPy."""

TOGETHER = (
    {"runtime", "calls", "forks", "job", "process_sets", "registry", "recorder", "slow_path"},
    {"arrays", "objects"},
)
"""Modules of one row that are parts of one thing."""

HANDED_OVER = {("tensorflow", "keras")}
"""The one import that goes up, inside functions: what is Keras's, optimizers and a layer, is handed over."""

DOORS = {"tensorflow/keras/__init__.py", "tensorflow/keras/callbacks.py"}
"""Horovod's names for what stands above: each file is a re-export, and no file of fusionctl imports it."""

HOMES = {
    "mpi4py": {"forks", "runtime", "job", "data"},
    "tensorflow": {"tensorflow", "keras"},
    "keras": {"keras"},
    "os.environ": {"config"},
}
"""What only these may use."""

SOURCE = Path(__file__).parents[1] / "fusionctl"
FILES = sorted(SOURCE.rglob("*.py"))
ROW = {name: number for number, names in enumerate(ROWS) for name in names}


def home(path: Path) -> str:
    """The module or package of fusionctl that a file belongs to."""
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(tree: ast.AST) -> Iterator[str]:
    """Dotted names of all that is imported, wherever in the file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def at_once(tree: ast.Module) -> ast.Module:
    """The file without its functions: what runs when it is imported."""
    return ast.Module([node for node in tree.body if not isinstance(node, ast.FunctionDef)], [])


def uses(tree: ast.AST) -> set[str]:
    """Top-level names of foreign packages, and os.environ however it is spelt."""
    foreign = {name.split(".")[0] for name in imports(tree)}
    reads = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)} | set(imports(tree))
    return foreign | ({"os.environ"} if reads & {"os.environ", "os.getenv", "os.putenv"} else set())


def own(tree: ast.AST) -> set[str]:
    """The modules and packages of fusionctl that a file imports; the package itself stands for the NumPy API."""
    names = [name.split(".") for name in imports(tree)]
    return {parts[1] if parts[1:] and parts[1] in ROW else "arrays" for parts in names if parts[0] == "fusionctl"}


def forbidden(importer: str, imported: str) -> bool:
    """Whether an import goes up, or sideways."""
    together = any({importer, imported} <= parts for parts in TOGETHER)
    allowed = importer == imported or together or (importer, imported) in HANDED_OVER
    return not allowed and ROW[imported] >= ROW[importer]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_imports_go_down(path: Path) -> None:
    tree, here = ast.parse(path.read_text()), home(path)
    if here != "__init__":
        assert here in ROW
        assert {name for name in own(tree) if forbidden(here, name)} == set()
    assert {name for name in uses(tree) if here not in HOMES.get(name, {here})} == set()


@pytest.mark.parametrize(("importer", "imported"), HANDED_OVER)
def test_what_is_handed_over_is_not_imported_before(importer: str, imported: str) -> None:
    for path in FILES:
        if home(path) == importer and path.relative_to(SOURCE).as_posix() not in DOORS:
            assert imported not in own(at_once(ast.parse(path.read_text())))


@pytest.mark.parametrize("door", sorted(DOORS))
def test_a_door_is_a_re_export_that_only_users_import(door: str) -> None:
    _, *rest = ast.parse((SOURCE / door).read_text()).body
    assert {type(node) for node in rest} == {ast.ImportFrom}
    name = "fusionctl." + door.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    for path in FILES:
        assert not any(f"{each}.".startswith(f"{name}.") for each in imports(ast.parse(path.read_text())))


def test_the_rules_bite() -> None:
    tree = ast.parse(
        "import os, mpi4py.MPI\nfrom fusionctl import runtime, allreduce\nx = os.environ['A']\nimport fusionctl.plan"
    )
    assert own(tree) == {"runtime", "arrays", "plan"}
    assert uses(tree) == {"os", "mpi4py", "fusionctl", "os.environ"}
    allowed = [("plan", "errors"), ("keras", "tensorflow"), ("tensorflow", "objects"), ("recorder", "registry")]
    refused = [("plan", "control"), ("control", "data"), ("arrays", "tensorflow")]
    assert [forbidden(*pair) for pair in allowed + refused] == [False] * 4 + [True] * 3


def test_every_module_has_a_row() -> None:
    assert sum(map(len, ROWS)) == len(ROW)
    assert {home(path) for path in FILES} - {"__init__"} <= ROW.keys()
