"""Which module may import what: the rules, and the little that reads them off a module's source."""

import ast
import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
CLIENT_MAY_IMPORT = (
    "gradserve",
    "numpy",
    "ml_dtypes",
    "google.protobuf",
    "google.rpc",
    "grpc",
    "grpc_status",
    *sys.stdlib_module_names,
)


def names_imported(source: str, package: str) -> Iterator[str]:
    """Yields the dotted name of everything that a module imports, at any depth and under any condition.

    Args:
        source: Its text.
        package: Dotted name of the package that holds it, from which relative imports start.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*parents, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("importlib.import_module", "__import__"):
            yield from (str(arg.value) for arg in node.args[:1] if isinstance(arg, ast.Constant))


def names_used(source: str) -> set[str]:
    """Returns every identifier and attribute that stands in a module's code (not in its comments and strings)."""
    nodes = list(ast.walk(ast.parse(source)))
    plain = {node.id for node in nodes if isinstance(node, ast.Name)}
    attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    imported = {alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names}
    return plain | attributes | imported


def is_within(name: str, packages: tuple[str, ...]) -> bool:
    """Whether a dotted name is one of the packages or lies in one."""
    return any(name == package or name.startswith(f"{package}.") for package in packages)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Confined:
    """A rule: within one tree, an import (or a name in code) may stand in some modules alone."""

    tree: str
    imports: tuple[str, ...] = ()
    name: str = ""
    only_in: tuple[str, ...]


RULES = (
    Confined(tree="client/gradserve", imports=("gradserve_server",), only_in=()),
    Confined(tree="client/gradserve", imports=("matplotlib",), only_in=("plotting.py",)),
    Confined(
        tree="server/gradserve_server",
        imports=("tensorflow", "keras"),
        only_in=("sources/", "autodiff/", "scheduling/device.py", "ops.py"),
    ),
    Confined(tree="server/gradserve_server", name="GradientTape", only_in=("autodiff/",)),
    Confined(tree="server/gradserve_server", imports=("prometheus_client",), only_in=("metrics.py",)),
    Confined(tree="server/gradserve_server", imports=("gradserve_server.app",), only_in=("cli.py", "testing.py")),
    Confined(tree="server/gradserve_server", imports=("torch", "jax"), only_in=()),
)
CLIENT_ROOMS_OF_EXTRAS = ("autodiff/tensorflow.py", "autodiff/torch.py", "autodiff/jax.py", "plotting.py")
"""Modules of the client that need a package that only an extra installs."""


def breaches(tree: str, module: str, source: str) -> list[str]:
    """Returns a line for each import or name in a module that a rule forbids.

    Args:
        tree: Folder of the package, such as "client/gradserve".
        module: Path of the module in it, such as "autodiff/torch.py".
        source: Text of the module.
    """
    package = ".".join([Path(tree).name, *Path(module).parts[:-1]])
    imported, used = set(names_imported(source, package)), names_used(source)
    found = []
    for rule in RULES:
        if rule.tree == tree and not module.startswith(rule.only_in):
            found += [f"{module} imports {name}" for name in imported if is_within(name, rule.imports)]
            found += [f"{module} names {rule.name}" for name in used if name == rule.name]
    if tree == "client/gradserve" and module not in CLIENT_ROOMS_OF_EXTRAS:
        found += [f"{module} imports {name}" for name in imported if not is_within(name, CLIENT_MAY_IMPORT)]
    return sorted(set(found))


def modules_of(tree: str) -> dict[str, str]:
    """Returns the source of each module of a package by its path in it."""
    root = ROOT / tree
    return {path.relative_to(root).as_posix(): path.read_text() for path in sorted(root.rglob("*.py"))}
