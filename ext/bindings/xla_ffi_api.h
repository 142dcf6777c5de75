// What is used of XLA's foreign function interface, whose ABI is C (xla/ffi/api/c_api.h).
//
// XLA's own headers state their version in what is built with them, and a runtime refuses what is
// newer than itself: with those of jaxlib 0.10, TensorFlow 2.21 would. The structs here are those
// of version 0.1, which later ones have only added to; each says its own size to the other
// side. tests/single/test_xla_ffi_api.py compares them with the headers of what is installed.
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

constexpr int kInt64 = 5, kFloat32 = 11;  // of XLA's types of elements

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

// Arguments, results: `size` pointers to what `types` say.
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

constexpr int kExecute = 3;  // of the stages in which a handler may be called

struct CallFrame {
  size_t struct_size;
  Extension* extensions;
  const Api* api;
  Context* context;
  int stage;
  Values arguments;
  Values results;
  Attributes attributes;
  Future* future;  // set by a handler that goes on after it has returned
};

using Handler = Error*(CallFrame*);

constexpr int kAborted = 10;  // of the codes of errors

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

// A struct of arguments that says its own size.
template <class Args>
Args sized() {
  Args args{};
  args.struct_size = sizeof(Args);
  return args;
}

}  // namespace easyddl::xla
