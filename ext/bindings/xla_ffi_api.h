// The parts of XLA's foreign function interface that easyddl uses. Its ABI is C
// (xla/ffi/api/c_api.h).
//
// XLA's own headers put their version into the binary, and a runtime refuses binaries that are
// newer than itself: TensorFlow 2.21 would refuse one that was built with the headers of jaxlib
// 0.10. The structs here are those of version 0.1. Later versions have only added members, and each
// struct holds its own size. tests/engine/test_xla_ffi_api.py compares them with the installed
// headers.
#pragma once

#include <cstddef>
#include <cstdint>

namespace easyddl::xla {

constexpr int kMajor = 0, kMinor = 1;

struct Error;
struct Future;
struct Context;

struct Extension {
  size_t struct_size;
  int type;
  Extension* next;
};
constexpr int kMetadataExtension = 1;

struct Version {
  size_t struct_size;
  Extension* extensions;
  int major, minor;
};

struct Metadata {
  size_t struct_size;
  Version version;
  uint32_t traits;
};

struct MetadataExtension {
  Extension base;
  Metadata* metadata;
};

struct ByteSpan {
  const char* text;
  size_t length;
};

constexpr int kInt64 = 5, kFloat32 = 11;  // XLA's numbers of element types

struct Buffer {
  size_t struct_size;
  Extension* extensions;
  int dtype;
  void* data;
  int64_t rank;
  int64_t* dims;
};

struct Scalar {
  int dtype;
  void* value;
};

constexpr int kScalarAttribute = 3;

// Arguments or results: `size` pointers to values of the kinds in `types`.
struct Values {
  size_t struct_size;
  Extension* extensions;
  int64_t size;
  int* types;
  void** values;
};

struct Attributes {
  size_t struct_size;
  Extension* extensions;
  int64_t size;
  int* types;
  ByteSpan** names;
  void** values;
};

struct Api;

constexpr int kExecute = 3;  // one of the stages in which XLA calls a handler

struct CallFrame {
  size_t struct_size;
  Extension* extensions;
  const Api* api;
  Context* context;
  int stage;
  Values arguments;
  Values results;
  Attributes attributes;
  Future* future;  // set by a handler that returns before it is done
};

using Handler = Error*(CallFrame*);

constexpr int kAborted = 10;  // one of the error codes

struct ErrorCreateArgs {
  size_t struct_size;
  Extension* extensions;
  const char* message;
  int code;
};

struct ErrorMessageArgs {
  size_t struct_size;
  Extension* extensions;
  Error* error;
  const char* message;
};

struct ErrorDestroyArgs {
  size_t struct_size;
  Extension* extensions;
  Error* error;
};

struct HandlerRegisterArgs {
  size_t struct_size;
  Extension* extensions;
  ByteSpan name, platform;
  Handler *instantiate, *prepare, *initialize, *execute;
  uint32_t traits;
};

struct StreamGetArgs {
  size_t struct_size;
  Extension* extensions;
  Context* context;
  void* stream;
};

struct FutureCreateArgs {
  size_t struct_size;
  Extension* extensions;
  Future* future;
};

struct FutureAvailableArgs {
  size_t struct_size;
  Extension* extensions;
  Future* future;
};

struct FutureErrorArgs {
  size_t struct_size;
  Extension* extensions;
  Future* future;
  Error* error;
};

using Unused = void();

struct Api {
  size_t struct_size;
  Extension* extensions;
  Version version;
  const void* internal;
  Error* (*error_create)(ErrorCreateArgs*);
  void (*error_message)(ErrorMessageArgs*);
  void (*error_destroy)(ErrorDestroyArgs*);
  Error* (*handler_register)(HandlerRegisterArgs*);
  Error* (*stream_get)(StreamGetArgs*);
  Unused *type_register, *context_get, *state_set, *state_get, *memory_allocate, *memory_free;
  Unused *pool_schedule, *pool_threads;
  Error* (*future_create)(FutureCreateArgs*);
  Error* (*future_set_available)(FutureAvailableArgs*);
  Error* (*future_set_error)(FutureErrorArgs*);
};

// Returns a struct of arguments that holds its own size.
template <class Args>
Args sized() {
  Args args{};
  args.struct_size = sizeof(Args);
  return args;
}

}  // namespace easyddl::xla
