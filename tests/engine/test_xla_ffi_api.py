"""The structs of ext/bindings/xla_ffi_api.h are those of XLA's own headers."""

import importlib.util
import pathlib
import shutil
import subprocess

import pytest

EXT = pathlib.Path(__file__).parents[2] / "ext"

# Ours and theirs, with the fields that are used.
STRUCTS = {
    ("Extension", "XLA_FFI_Extension_Base"): [("type", "type"), ("next", "next")],
    ("Version", "XLA_FFI_Api_Version"): [("major", "major_version"), ("minor", "minor_version")],
    ("Metadata", "XLA_FFI_Metadata"): [("version", "api_version"), ("traits", "traits")],
    ("MetadataExtension", "XLA_FFI_Metadata_Extension"): [("metadata", "metadata")],
    ("ByteSpan", "XLA_FFI_ByteSpan"): [("text", "ptr"), ("length", "len")],
    ("Buffer", "XLA_FFI_Buffer"): [
        ("dtype", "dtype"), ("data", "data"), ("rank", "rank"), ("dims", "dims"),
    ],
    ("Scalar", "XLA_FFI_Scalar"): [("dtype", "dtype"), ("value", "value")],
    ("Values", "XLA_FFI_Args"): [("size", "size"), ("types", "types"), ("values", "args")],
    ("Values", "XLA_FFI_Rets"): [("size", "size"), ("types", "types"), ("values", "rets")],
    ("Attributes", "XLA_FFI_Attrs"): [
        ("size", "size"), ("types", "types"), ("names", "names"), ("values", "attrs"),
    ],
    ("CallFrame", "XLA_FFI_CallFrame"): [
        ("extensions", "extension_start"), ("api", "api"), ("context", "ctx"), ("stage", "stage"),
        ("arguments", "args"), ("results", "rets"), ("attributes", "attrs"), ("future", "future"),
    ],
    ("ErrorCreateArgs", "XLA_FFI_Error_Create_Args"): [("message", "message"), ("code", "errc")],
    ("ErrorMessageArgs", "XLA_FFI_Error_GetMessage_Args"): [
        ("error", "error"), ("message", "message"),
    ],
    ("ErrorDestroyArgs", "XLA_FFI_Error_Destroy_Args"): [("error", "error")],
    ("HandlerRegisterArgs", "XLA_FFI_Handler_Register_Args"): [
        ("name", "name"), ("platform", "platform"), ("instantiate", "bundle"), ("traits", "traits"),
    ],
    ("StreamGetArgs", "XLA_FFI_Stream_Get_Args"): [("context", "ctx"), ("stream", "stream")],
    ("FutureCreateArgs", "XLA_FFI_Future_Create_Args"): [("future", "future")],
    ("FutureAvailableArgs", "XLA_FFI_Future_SetAvailable_Args"): [("future", "future")],
    ("FutureErrorArgs", "XLA_FFI_Future_SetError_Args"): [("future", "future"), ("error", "error")],
    ("Api", "XLA_FFI_Api"): [
        ("version", "api_version"),
        *((name, f"XLA_FFI_{theirs}") for name, theirs in [
            ("error_create", "Error_Create"), ("error_message", "Error_GetMessage"),
            ("error_destroy", "Error_Destroy"), ("handler_register", "Handler_Register"),
            ("stream_get", "Stream_Get"), ("future_create", "Future_Create"),
            ("future_set_available", "Future_SetAvailable"),
            ("future_set_error", "Future_SetError"),
        ]),
    ],
}  # fmt: skip
CONSTANTS = {
    "kMajor": "XLA_FFI_API_MAJOR",
    "kMetadataExtension": "XLA_FFI_Extension_Metadata",
    "kInt64": "XLA_FFI_DataType_S64",
    "kFloat32": "XLA_FFI_DataType_F32",
    "kScalarAttribute": "XLA_FFI_AttrType_SCALAR",
    "kExecute": "XLA_FFI_ExecutionStage_EXECUTE",
    "kAborted": "XLA_FFI_Error_Code_ABORTED",
}


def headers_of(framework):
    found = importlib.util.find_spec(framework)
    if found is None:
        pytest.skip(f"{framework} is not installed")
    include = pathlib.Path(found.submodule_search_locations[0], "include")
    header = include / "xla/ffi/api/c_api.h"
    if "XLA_FFI_Future;" not in (header.read_text() if header.exists() else ""):
        pytest.skip(f"the XLA of this {framework} has another interface, which easyddl refuses")
    return include


def program():
    lines = ['#include "xla/ffi/api/c_api.h"', '#include "bindings/xla_ffi_api.h"']
    equal = "static_assert({0} == {1}, \"{0}\");".format  # fmt: skip
    for (ours, theirs), fields in STRUCTS.items():
        for mine, its in [("struct_size", "struct_size"), *fields]:
            if mine == "struct_size" and ours in ("MetadataExtension", "ByteSpan", "Scalar"):
                continue
            lines.append(
                equal(f"offsetof(easyddl::xla::{ours}, {mine})", f"offsetof({theirs}, {its})")
            )
    lines += [equal(f"easyddl::xla::{ours}", theirs) for ours, theirs in CONSTANTS.items()]
    lines.append('static_assert(easyddl::xla::kMinor <= XLA_FFI_API_MINOR, "newer");')
    # Nested by value: a field of another size would shift those that follow.
    lines += [
        equal(f"sizeof(easyddl::xla::{ours})", f"sizeof({theirs})")
        for ours, theirs in STRUCTS
        if ours not in ("Metadata", "Api")
    ]
    return "\n".join(lines)


@pytest.mark.parametrize("framework", ["jaxlib", "tensorflow"])
def test_structs_are_xlas(framework, tmp_path):
    include = headers_of(framework)
    compiler = shutil.which("c++")
    assert compiler, "a C++ compiler is needed, as it is to build easyddl"
    source = tmp_path / "compare.cpp"
    source.write_text(program())
    done = subprocess.run(
        [compiler, "-std=c++17", "-fsyntax-only", "-Wno-invalid-offsetof", f"-I{include}",
         f"-I{EXT}", source],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
