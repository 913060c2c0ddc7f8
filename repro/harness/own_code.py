"""The source of a model of the user's own, as a digest: an edited model is another run."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from repro.harness.spec import digest


def code_of(model: str) -> str | None:
    """Digest of the module of `import:package.module:function` and of what it imports beside it.

    Beside it are the modules below the folder that its package lies in; of an installed package,
    only its own. They are found by reading the source, and nothing is run: a module that is
    imported under a computed name is not seen. None where there is no such module, and for our own.
    """
    module = model.removeprefix("import:").partition(":")[0]
    top = module.partition(".")[0]
    folders = [Path.cwd(), *(Path(folder).absolute() for folder in sys.path)]
    root = next((folder for folder in folders if _source(folder, module)), None)
    if root is None or top == "repro":
        return None
    installed = root.name in ("site-packages", "dist-packages")
    sources: dict[str, str] = {}
    waiting = {module}
    while waiting:
        name = waiting.pop()
        first = name.partition(".")[0]
        beside = first == top if installed else first != "repro"
        path = _source(root, name) if beside else None
        if path is not None and (place := path.relative_to(root).as_posix()) not in sources:
            source = path.read_bytes()
            sources[place] = source.decode("latin-1")
            package = name.split(".")[: None if path.stem == "__init__" else -1]
            for imported in (name, *_imported(source, package)):
                parts = imported.split(".")
                waiting |= {".".join(parts[:count]) for count in range(1, len(parts) + 1)}
    return digest(sources)[:12]


def _source(folder: Path, module: str) -> Path | None:
    """The file of a module below a folder; None where there is none."""
    stem = folder.joinpath(*module.split("."))
    paths = (stem / "__init__.py", stem.with_name(f"{stem.name}.py"))
    return next((path for path in paths if path.is_file()), None)


def _imported(source: bytes, package: list[str]) -> Iterator[str]:
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError):  # building the model reports it
        return
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = [*above, *filter(None, [node.module])]
            yield from (".".join([*base, alias.name]) for alias in node.names)
