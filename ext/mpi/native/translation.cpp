// Translates the engine's MPI calls into those of one MPI library.
//
// This file is compiled once for each binary interface (ABI) of MPI, with that MPI's own mpi.h,
// into a library that exports one function. It is linked with no MPI: see mpi/library.cpp.
#include <mpi.h>

#include <cstring>

#include "mpi/functions.h"

namespace {

namespace ours = easyddl::mpi;

// A library's handles are integers or pointers, of at most the size of ours.
template <class Native, class Ours>
Native handle_of(Ours handle) {
  static_assert(sizeof(Native) <= sizeof(Ours));
  return (Native) static_cast<uintptr_t>(handle);
}

template <class Ours, class Native>
Ours from_handle(Native handle) {
  return static_cast<Ours>((uintptr_t)handle);
}

MPI_Comm native(ours::Comm comm) {
  switch (comm) {
    case ours::Comm::null:
      return MPI_COMM_NULL;
    case ours::Comm::world:
      return MPI_COMM_WORLD;
    case ours::Comm::self:
      return MPI_COMM_SELF;
  }
  return handle_of<MPI_Comm>(comm);
}

MPI_Request native(ours::Request request) {
  return request == ours::Request::null ? MPI_REQUEST_NULL : handle_of<MPI_Request>(request);
}

MPI_Datatype native(ours::Datatype type) {
  switch (type) {
    case ours::Datatype::byte:
      return MPI_BYTE;
    case ours::Datatype::character:
      return MPI_CHAR;
    case ours::Datatype::integer:
      return MPI_INT;
    case ours::Datatype::int64:
      return MPI_INT64_T;
    case ours::Datatype::uint64:
      return MPI_UINT64_T;
    case ours::Datatype::float32:
      return MPI_FLOAT;
  }
  return MPI_DATATYPE_NULL;
}

MPI_Op native(ours::Op op) {
  switch (op) {
    case ours::Op::sum:
      return MPI_SUM;
    case ours::Op::min:
      return MPI_MIN;
    case ours::Op::max:
      return MPI_MAX;
    case ours::Op::bit_or:
      return MPI_BOR;
  }
  return MPI_OP_NULL;
}

int native(ours::ThreadLevel level) {
  switch (level) {
    case ours::ThreadLevel::single:
      return MPI_THREAD_SINGLE;
    case ours::ThreadLevel::funneled:
      return MPI_THREAD_FUNNELED;
    case ours::ThreadLevel::serialized:
      return MPI_THREAD_SERIALIZED;
    case ours::ThreadLevel::multiple:
      return MPI_THREAD_MULTIPLE;
  }
  return MPI_THREAD_SINGLE;
}

ours::ThreadLevel from_thread_level(int level) {
  if (level == MPI_THREAD_MULTIPLE) return ours::ThreadLevel::multiple;
  if (level == MPI_THREAD_SERIALIZED) return ours::ThreadLevel::serialized;
  return level == MPI_THREAD_FUNNELED ? ours::ThreadLevel::funneled : ours::ThreadLevel::single;
}

const void* native_input(const void* data) {
  return data == ours::in_place() ? MPI_IN_PLACE : data;
}

int native_source(int from) { return from == ours::kAnySource ? MPI_ANY_SOURCE : from; }
int native_tag(int tag) { return tag == ours::kAnyTag ? MPI_ANY_TAG : tag; }
int native_color(int color) { return color == ours::kUndefined ? MPI_UNDEFINED : color; }

// Outputs of MPI, which are converted at the end of their scope. Some are inputs too.

class NewComm {
 public:
  explicit NewComm(ours::Comm* result, MPI_Comm before = MPI_COMM_NULL)
      : result_(result), comm_(before) {}
  ~NewComm() {
    *result_ = comm_ == MPI_COMM_NULL ? ours::Comm::null : from_handle<ours::Comm>(comm_);
  }
  operator MPI_Comm*() { return &comm_; }

 private:
  ours::Comm* result_;
  MPI_Comm comm_;
};

class NewRequest {
 public:
  explicit NewRequest(ours::Request* result, MPI_Request before = MPI_REQUEST_NULL)
      : result_(result), request_(before) {}
  ~NewRequest() {
    *result_ =
        request_ == MPI_REQUEST_NULL ? ours::Request::null : from_handle<ours::Request>(request_);
  }
  operator MPI_Request*() { return &request_; }

 private:
  ours::Request* result_;
  MPI_Request request_;
};

class NewStatus {
 public:
  explicit NewStatus(ours::Status* result) : result_(result) {}
  ~NewStatus() {
    static_assert(sizeof status_ <= sizeof result_->native);
    if (result_ == nullptr) return;
    result_->MPI_SOURCE = status_.MPI_SOURCE;
    result_->MPI_TAG = status_.MPI_TAG;
    std::memcpy(result_->native, &status_, sizeof status_);
  }
  operator MPI_Status*() { return result_ != nullptr ? &status_ : MPI_STATUS_IGNORE; }

 private:
  ours::Status* result_;
  MPI_Status status_{};
};

void add_environment(ours::Functions& f) {
  static_assert(MPI_SUCCESS == 0);
  static_assert(MPI_MAX_LIBRARY_VERSION_STRING <= ours::kMaxLibraryVersion);
  static_assert(MPI_MAX_ERROR_STRING <= ours::kMaxErrorString);
  f.MPI_Init_thread = [](ours::ThreadLevel required, ours::ThreadLevel* provided) {
    int level = MPI_THREAD_SINGLE;
    const int code = MPI_Init_thread(nullptr, nullptr, native(required), &level);
    *provided = from_thread_level(level);
    return code;
  };
  f.MPI_Query_thread = [](ours::ThreadLevel* provided) {
    int level = MPI_THREAD_SINGLE;
    const int code = MPI_Query_thread(&level);
    *provided = from_thread_level(level);
    return code;
  };
  f.MPI_Finalize = [] { return MPI_Finalize(); };
  f.MPI_Finalized = [](int* flag) { return MPI_Finalized(flag); };
  f.MPI_Abort = [](ours::Comm comm, int status) { return MPI_Abort(native(comm), status); };
  f.MPI_Error_string = [](int code, char* text, int* length) {
    return MPI_Error_string(code, text, length);
  };
  f.MPI_Get_library_version = [](char* text, int* length) {
    return MPI_Get_library_version(text, length);
  };
}

void add_communicators(ours::Functions& f) {
  f.MPI_Comm_rank = [](ours::Comm comm, int* rank) { return MPI_Comm_rank(native(comm), rank); };
  f.MPI_Comm_size = [](ours::Comm comm, int* size) { return MPI_Comm_size(native(comm), size); };
  f.MPI_Comm_dup = [](ours::Comm comm, ours::Comm* result) {
    return MPI_Comm_dup(native(comm), NewComm(result));
  };
  f.MPI_Comm_split = [](ours::Comm comm, int color, int key, ours::Comm* result) {
    return MPI_Comm_split(native(comm), native_color(color), key, NewComm(result));
  };
  f.MPI_Comm_free = [](ours::Comm* comm) { return MPI_Comm_free(NewComm(comm, native(*comm))); };
  f.MPI_Comm_get_attr = [](ours::Comm comm, ours::Attribute, void* value, int* found) {
    return MPI_Comm_get_attr(native(comm), MPI_TAG_UB, value, found);
  };
  f.MPI_Comm_set_errhandler = [](ours::Comm comm, ours::ErrorHandler) {
    return MPI_Comm_set_errhandler(native(comm), MPI_ERRORS_RETURN);
  };
}

void add_messages(ours::Functions& f) {
  f.MPI_Send = [](const void* data, int count, ours::Datatype type, int to, int tag,
                  ours::Comm comm) {
    return MPI_Send(data, count, native(type), to, tag, native(comm));
  };
  f.MPI_Recv = [](void* data, int count, ours::Datatype type, int from, int tag, ours::Comm comm,
                  ours::Status* status) {
    return MPI_Recv(data, count, native(type), native_source(from), native_tag(tag), native(comm),
                    NewStatus(status));
  };
  f.MPI_Isend = [](const void* data, int count, ours::Datatype type, int to, int tag,
                   ours::Comm comm, ours::Request* request) {
    return MPI_Isend(data, count, native(type), to, tag, native(comm), NewRequest(request));
  };
  f.MPI_Irecv = [](void* data, int count, ours::Datatype type, int from, int tag, ours::Comm comm,
                   ours::Request* request) {
    return MPI_Irecv(data, count, native(type), native_source(from), native_tag(tag), native(comm),
                     NewRequest(request));
  };
  f.MPI_Iprobe = [](int from, int tag, ours::Comm comm, int* flag, ours::Status* status) {
    return MPI_Iprobe(native_source(from), native_tag(tag), native(comm), flag, NewStatus(status));
  };
  f.MPI_Get_count = [](const ours::Status* status, ours::Datatype type, int* count) {
    MPI_Status copy;
    std::memcpy(&copy, status->native, sizeof copy);
    return MPI_Get_count(&copy, native(type), count);
  };
  f.MPI_Test = [](ours::Request* request, int* flag, ours::Status* status) {
    return MPI_Test(NewRequest(request, native(*request)), flag, NewStatus(status));
  };
  f.MPI_Wait = [](ours::Request* request, ours::Status* status) {
    return MPI_Wait(NewRequest(request, native(*request)), NewStatus(status));
  };
}

void add_collectives(ours::Functions& f) {
  f.MPI_Barrier = [](ours::Comm comm) { return MPI_Barrier(native(comm)); };
  f.MPI_Ibarrier = [](ours::Comm comm, ours::Request* request) {
    return MPI_Ibarrier(native(comm), NewRequest(request));
  };
  f.MPI_Bcast = [](void* data, int count, ours::Datatype type, int root, ours::Comm comm) {
    return MPI_Bcast(data, count, native(type), root, native(comm));
  };
  f.MPI_Allgather = [](const void* in, int in_count, ours::Datatype in_type, void* out,
                       int out_count, ours::Datatype out_type, ours::Comm comm) {
    return MPI_Allgather(native_input(in), in_count, native(in_type), out, out_count,
                         native(out_type), native(comm));
  };
  f.MPI_Allreduce = [](const void* in, void* out, int count, ours::Datatype type, ours::Op op,
                       ours::Comm comm) {
    return MPI_Allreduce(native_input(in), out, count, native(type), native(op), native(comm));
  };
  f.MPI_Iallreduce = [](const void* in, void* out, int count, ours::Datatype type, ours::Op op,
                        ours::Comm comm, ours::Request* request) {
    return MPI_Iallreduce(native_input(in), out, count, native(type), native(op), native(comm),
                          NewRequest(request));
  };
}

void (*g_in_finalize)() = nullptr;

int do_not_copy(MPI_Comm, int, void*, void*, void*, int* flag) {
  *flag = 0;
  return MPI_SUCCESS;
}

int delete_attribute(MPI_Comm, int, void*, void*) {
  g_in_finalize();
  return MPI_SUCCESS;
}

int call_in_finalize(void (*function)()) {
  g_in_finalize = function;
  int key = MPI_KEYVAL_INVALID;
  const int code = MPI_Comm_create_keyval(do_not_copy, delete_attribute, &key, nullptr);
  return code != MPI_SUCCESS ? code : MPI_Comm_set_attr(MPI_COMM_SELF, key, nullptr);
}

#define EASYDDL_TEXT_OF(x) #x
#define EASYDDL_TEXT(x) EASYDDL_TEXT_OF(x)
#if defined(OMPI_MAJOR_VERSION)
constexpr const char* kBuiltWith = "Open MPI " EASYDDL_TEXT(OMPI_MAJOR_VERSION) "." EASYDDL_TEXT(
    OMPI_MINOR_VERSION) "." EASYDDL_TEXT(OMPI_RELEASE_VERSION);
#elif defined(MPICH_VERSION)
constexpr const char* kBuiltWith = "MPICH " MPICH_VERSION;
#else
constexpr const char* kBuiltWith =
    "MPI " EASYDDL_TEXT(MPI_VERSION) "." EASYDDL_TEXT(MPI_SUBVERSION);
#endif

const ours::Functions g_functions = [] {
  ours::Functions f{};
  add_environment(f);
  add_communicators(f);
  add_messages(f);
  add_collectives(f);
  f.call_in_finalize = call_in_finalize;
  f.built_with = kBuiltWith;
  f.world = (uintptr_t)MPI_COMM_WORLD;
  return f;
}();

}  // namespace

extern "C" __attribute__((visibility("default"))) const ours::Functions* easyddl_mpi_functions() {
  return &g_functions;
}
