"""The wire contract: generated code is fresh, ``buf`` finds nothing, and every element has a comment."""

import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2

ROOT = Path(__file__).parents[2]
PROTO = ROOT / "proto"
SOURCES = sorted(path.relative_to(PROTO).as_posix() for path in PROTO.rglob("*.proto"))
GENERATED = ROOT / "client" / "gradserve" / "v1"
PINNED_PYTHON = ROOT / ".venv-proto" / "bin" / "python"


def run_protoc(*options: str, sources: tuple[str, ...] = tuple(SOURCES), root: Path = PROTO) -> None:
    """Runs the pinned protoc, the only one whose code is checked in."""
    if not PINNED_PYTHON.exists():
        pytest.fail("the pinned grpcio-tools is missing at .venv-proto: run `make setup`")
    command = [PINNED_PYTHON, "-m", "grpc_tools.protoc", f"-I{root}", *options, *sources]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr


def generated_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*_pb2.py*")}


def test_generated_code_is_what_the_pinned_protoc_makes(tmp_path: Path) -> None:
    run_protoc(f"--python_out={tmp_path}", f"--pyi_out={tmp_path}")
    fresh, checked_in = generated_in(tmp_path / "gradserve" / "v1"), generated_in(GENERATED)
    assert sorted(checked_in) == sorted(fresh)
    assert [name for name in fresh if fresh[name] != checked_in[name]] == []


def test_generated_code_covers_every_proto_file() -> None:
    stems = {Path(source).stem for source in SOURCES}
    assert set(generated_in(GENERATED)) == {f"{stem}_pb2{ext}" for stem in stems for ext in (".py", ".pyi")}


def run_buf(folder: Path) -> subprocess.CompletedProcess[str]:
    buf = Path(sys.executable).with_name("buf")
    return subprocess.run([buf, "lint", folder], capture_output=True, text=True, timeout=60, check=False)


def test_buf_lint_finds_nothing() -> None:
    ended = run_buf(PROTO)
    assert (ended.returncode, ended.stdout + ended.stderr) == (0, "")


def test_buf_lint_of_a_planted_violation_finds_it(tmp_path: Path) -> None:
    (tmp_path / "buf.yaml").write_text((PROTO / "buf.yaml").read_text())
    planted = tmp_path / "gradserve" / "v1" / "bad.proto"
    planted.parent.mkdir(parents=True)
    planted.write_text('syntax = "proto3";\npackage gradserve.v1;\nmessage bad { int32 X = 1; }\n')
    assert "PascalCase" in run_buf(tmp_path).stdout


ELEMENTS = {
    "message_type": {"field": {}, "nested_type": {"field": {}}, "enum_type": {"value": {}}},
    "enum_type": {"value": {}},
    "service": {"method": {}},
}
"""The descriptor's lists of things that a reader of the contract meets, and those inside of them."""


def uncommented(tmp_path: Path, root: Path = PROTO, sources: tuple[str, ...] = tuple(SOURCES)) -> tuple[int, list[str]]:
    """Returns how many elements the files have, and the names of those without a leading comment."""
    output = tmp_path / "descriptors"
    run_protoc(f"--descriptor_set_out={output}", "--include_source_info", root=root, sources=sources)
    names, bare = [], []
    for file in descriptor_pb2.FileDescriptorSet.FromString(output.read_bytes()).file:
        commented = {tuple(at.path) for at in file.source_code_info.location if at.leading_comments.strip()}
        elements = dict(walk(file, ELEMENTS, (), file.name))
        names += elements
        bare += [name for name, path in elements.items() if path not in commented]
    return len(names), bare


def walk(descriptor, kinds, path: tuple[int, ...], name: str):
    """Yields name and path (as ``SourceCodeInfo`` counts it) of each element of a descriptor."""
    for kind, inner in kinds.items():
        number = descriptor.DESCRIPTOR.fields_by_name[kind].number
        for index, child in enumerate(getattr(descriptor, kind)):
            if not (kind == "nested_type" and child.options.map_entry):  # made by protoc for a map field
                child_path, child_name = (*path, number, index), f"{name}:{child.name}"
                yield child_name, child_path
                yield from walk(child, inner, child_path, child_name)


def test_proto_every_element_has_a_leading_comment(tmp_path: Path) -> None:
    count, bare = uncommented(tmp_path)
    assert count > 80
    assert bare == []


def test_proto_planted_elements_without_a_comment_are_found(tmp_path: Path) -> None:
    (tmp_path / "bad.proto").write_text(
        'syntax = "proto3";\n// Said.\nmessage M {\n  int32 a = 1;\n  map<string, int32> b = 2;  // trailing\n}\n'
        "enum E { Z = 0; }\nservice S { rpc R(M) returns (M); }\n"
    )
    _, bare = uncommented(tmp_path, tmp_path, ("bad.proto",))
    expected = ["M:a", "M:b", "E", "E:Z", "S", "S:R"]
    assert bare == [f"bad.proto:{name}" for name in expected]


@pytest.mark.parametrize("source", SOURCES)
def test_proto_file_says_what_it_is_for(source: str) -> None:
    lines = (PROTO / source).read_text().splitlines()
    before_package = lines[: next(i for i, line in enumerate(lines) if line.startswith("package "))]
    assert before_package[-1].startswith("// ")
