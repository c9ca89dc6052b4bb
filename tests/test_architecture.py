"""Who may import whom, and what a module may do when it is imported."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter

import pytest

from tests.imports import COMPOSED, CORE, MAY_IMPORT, MAY_USE, ORACLES, PUBLIC, WORKBENCH
from tests.source import FUNCTIONS, ROOT, Module, modules, where

FILE_LINES = 250
FUNCTION_LINES = 60

OWN = modules("rope_jax")
NAMES = frozenset(module.name for module in OWN)


def part(name: str) -> str:
    """The row of MAY_IMPORT that a module's name falls under."""
    inner = name.removeprefix("rope_jax.")
    rows = [row for row in MAY_IMPORT if inner == row or inner.startswith(row + ".")]
    return max(rows, key=len, default=inner)


def allowed(module: Module, target: str) -> bool:
    source, goal = part(module.name), part(target)
    if source == goal and source != "scaling":
        return True
    if source == "scaling":
        methods_gather = module.name == "rope_jax.scaling"
        composed = COMPOSED.get(module.name.removeprefix("rope_jax.")) == target.removeprefix("rope_jax.")
        return methods_gather or composed or goal in MAY_IMPORT["scaling"]
    return goal in MAY_IMPORT[source]


def test_every_module_has_its_row():
    unknown = [module.name for module in OWN if module.name != "rope_jax" and part(module.name) not in MAY_IMPORT]
    assert unknown == []


def test_modules_import_only_what_their_row_names():
    wrong = [
        f"{module.name} imports {target}"
        for module in OWN
        if module.name != "rope_jax"
        for target in sorted(module.own_imports(NAMES))
        if not allowed(module, target)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("part_name", ["attention", "nn"])
def test_model_never_reaches_the_scaling_methods(part_name):
    graph = {module.name: module.own_imports(NAMES) for module in OWN}
    reached, ahead = set(), [name for name in graph if part(name) == part_name]
    while ahead:
        name = ahead.pop()
        reached.add(name)
        ahead += [target for target in graph[name] - reached if target != "rope_jax"]
    assert reached and not [name for name in reached if part(name).split(".")[0] in ("scaling", "huggingface")]


def test_packages_from_outside_stay_in_their_part():
    wrong = []
    for module in (*OWN, *modules("scripts")):
        usable = WORKBENCH if module.name.startswith("scripts") else MAY_USE.get(part(module.name), CORE)
        if module.name == "scripts.make_golden":
            usable = (*usable, *ORACLES)
        foreign = module.foreign_imports() - sys.stdlib_module_names - {"_typeshed", *usable}
        wrong += [f"{module.name} imports {name}" for name in sorted(foreign)]
    assert not wrong, "\n".join(wrong)


def test_no_import_cycles():
    # Every import counts, those inside functions as well.
    graph = {module.name: module.own_imports(NAMES) for module in OWN}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


MUTABLE = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp, ast.GeneratorExp)
MAKES_MUTABLE = (
    "list",
    "dict",
    "set",
    "bytearray",
    "defaultdict",
    "OrderedDict",
    "Counter",
    "deque",
    "ContextVar",
    "iter",
)


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _mutable(value: ast.expr | None) -> bool:
    """Whether a value, or an element of it, can change later. What is handed to another call is that call's affair."""
    match value:
        case ast.Call(func=function, args=[ast.Dict(values=values)]) if _name(function) == "MappingProxyType":
            return any(map(_mutable, values))
        case ast.Call(func=function):
            return _name(function) in MAKES_MUTABLE
        case ast.Tuple(elts=elements):
            return any(map(_mutable, elements))
        case ast.IfExp(body=body, orelse=orelse):
            return _mutable(body) or _mutable(orelse)
        case ast.BinOp(left=left, right=right):
            return _mutable(left) or _mutable(right)
    return isinstance(value, MUTABLE)


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """What runs on import: the module's statements and those inside its if, try, with and loops."""
    for node in body:
        yield node
        if not isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            for field in ("body", "orelse", "finalbody"):
                yield from _statements(getattr(node, field, []))
            for handler in getattr(node, "handlers", []):
                yield from _statements(handler.body)


def _changes_state(node: ast.stmt) -> bool:
    match node:
        case ast.Assign(targets=[ast.Name(id="__all__")]):
            return False
        case ast.Assign(targets=targets, value=value):
            return _mutable(value) or not all(isinstance(target, ast.Name | ast.Tuple) for target in targets)
        case ast.AnnAssign(target=target, value=value):
            return _mutable(value) or not isinstance(target, ast.Name)
        case ast.Expr(value=ast.Constant()):
            return False
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr="defjvp" | "defjvps" | "defvjp"))):
            return False
    return isinstance(node, ast.Expr | ast.AugAssign | ast.Delete | ast.For | ast.While | ast.With)


def test_modules_hold_no_mutable_state():
    # Mappings are wrapped in MappingProxyType, sequences are tuples, sets are frozensets; no statement on import has an
    # effect besides binding names (a derivative rule's registration excepted), and no function rebinds a global.
    wrong = [where(module, node) for module in OWN for node in _statements(module.tree.body) if _changes_state(node)]
    wrong += [where(module, node) for module in OWN for node in ast.walk(module.tree) if isinstance(node, ast.Global)]
    assert not wrong, "\n".join(wrong)


def test_public_names_are_these():
    (root,) = (module for module in OWN if module.name == "rope_jax")
    bound = [alias for node in root.tree.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert sorted(alias.name for alias in bound if alias.asname == alias.name) == sorted(PUBLIC)


def test_files_and_functions_stay_small():
    wrong = []
    for module in (*OWN, *modules("scripts"), *modules("tests")):
        lines = module.text.count("\n")
        wrong += [f"{module.path.relative_to(ROOT)}: {lines} lines"] * (lines > FILE_LINES)
        for node in ast.walk(module.tree):
            if isinstance(node, FUNCTIONS):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if ast.get_docstring(node) is not None:
                    lines -= (node.body[0].end_lineno or 0) - node.body[0].lineno + 1
                wrong += [f"{where(module, node)} {node.name}: {lines} lines"] * (lines > FUNCTION_LINES)
    assert not wrong, "\n".join(wrong)


def test_import_is_light_and_leaves_jax_alone():
    code = """
import sys, jax
before = dict(jax.config.values)
import rope_jax
heavy = {"flax", "optax", "chex", "orbax", "grain", "matplotlib", "tyro", "rich", "jinja2", "torch", "transformers"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
assert dict(jax.config.values) == before
"""
    # No such platform exists: touching a device while importing would raise.
    environment = {"PATH": "", "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "none_such"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
