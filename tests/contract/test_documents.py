"""The documents: links lead somewhere, and the ops in them are served as they stand."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from gradserve_server.testing import RunningServer

ROOT = Path(__file__).parents[2]
DOCUMENTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")]
LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)(?:#[^)]*)?\)")
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
IMPORTS = "import tensorflow as tf\nfrom gradserve_server import op\n"


def blocks_with_ops() -> list[object]:
    found = [
        (f"{path.stem}-{number}", block)
        for path in (ROOT / "README.md", ROOT / "docs" / "writing-an-op.md")
        for number, block in enumerate(BLOCK.findall(path.read_text()))
        if "@op(" in block
    ]
    return [pytest.param(block, id=name) for name, block in found]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_document_links_lead_to_files_that_are_there(path: Path) -> None:
    broken = [link for link in LINK.findall(path.read_text()) if not (path.parent / link).exists()]
    assert broken == []


@pytest.mark.parametrize("block", blocks_with_ops())
def test_document_op_is_served_as_it_stands(block: str, tmp_path: Path, serve: Callable[..., RunningServer]) -> None:
    module = tmp_path / "ops.py"
    module.write_text(IMPORTS + block)
    with serve(module).client() as client:
        (info,) = client.ops()
        inputs = dict.fromkeys(info.signatures["serving_default"].inputs, 2.0)
        assert client.vjp(info.name, inputs).status == dict.fromkeys(inputs, "dense")


def test_document_blocks_are_found() -> None:
    assert len(blocks_with_ops()) >= 5
