"""The project's own modules as syntax trees: what each imports, by full name."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Module:
    name: str  # rope_jax.scaling.yarn; a package goes by the name of its folder
    path: Path

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def imports(self) -> frozenset[str]:
        """Every module imported anywhere in the file, inside functions too."""
        return frozenset(target for node in self._nodes() for target in self._targets(node))

    def own_imports(self, names: frozenset[str]) -> set[str]:
        """The imported modules among `names`: `from rope_jax import nn` imports rope_jax.nn, not rope_jax."""
        return {owner for target in self.imports if (owner := _longest(target, names)) and owner != self.name}

    def foreign_imports(self) -> set[str]:
        """Top-level names of everything imported from outside the project."""
        return {target.partition(".")[0] for target in self.imports} - {"rope_jax", "scripts", "tests"}

    def _nodes(self) -> Iterator[ast.AST]:
        # The package root may import lazily in __getattr__: that is what keeps it light.
        body = [
            node
            for node in self.tree.body
            if not (self.name == "rope_jax" and isinstance(node, FUNCTIONS) and node.name == "__getattr__")
        ]
        return (inner for node in body for inner in ast.walk(node))

    def _targets(self, node: ast.AST) -> list[str]:
        match node:
            case ast.Import(names=names):
                return [alias.name for alias in names]
            case ast.ImportFrom(module=module, names=names, level=level):
                package = self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]
                parents = package.split(".")
                base = (
                    ".".join([*parents[: len(parents) - level + 1], *([module] if module else [])]) if level else module
                )
                return [f"{base}.{alias.name}" for alias in names]
            case ast.Call(func=ast.Attribute(attr="import_module"), args=[ast.Constant(value=str(target)), *_]):
                return [target]
            case ast.Call(func=ast.Name(id="import_module"), args=[ast.Constant(value=str(target)), *_]):
                return [target]
        return []


def _longest(target: str, names: frozenset[str]) -> str | None:
    """The module that `target` names, or that holds the name it ends in."""
    holder = target.rpartition(".")[0]
    return target if target in names else holder if holder in names else None


@cache
def modules(folder: str) -> tuple[Module, ...]:
    """Every Python file under `folder`, in order of name."""
    found = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found.append(Module(".".join(parts[:-1] if parts[-1] == "__init__" else parts), path))
    return tuple(found)


def where(module: Module, node: ast.AST) -> str:
    return f"{module.path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}"
