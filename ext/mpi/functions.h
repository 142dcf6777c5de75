// The functions of MPI that the engine calls, in types that are the same for every MPI library.
//
// The libraries differ in their binary interface (ABI): a communicator is an integer in MPICH and a
// pointer in Open MPI. The engine is compiled once, for the types below. A small library for each
// ABI translates them: native/translation.cpp.
#pragma once

#include <cstddef>
#include <cstdint>

namespace easyddl::mpi {

// Handles. The named ones stand for the library's constants; all others hold the library's own
// handle, which is never as small as these.
enum class Comm : uintptr_t { null, world, self };
enum class Request : uintptr_t { null };

enum class Datatype { byte, character, integer, int64, uint64, float32 };
enum class Op { sum, min, max, bit_or };
enum class Attribute { tag_upper_bound };
enum class ErrorHandler { return_errors };
enum class ThreadLevel { single, funneled, serialized, multiple };

constexpr int kAnySource = -1;
constexpr int kAnyTag = -1;
constexpr int kUndefined = -32766;
constexpr int kMaxLibraryVersion = 8192;  // bytes of the longest text
constexpr int kMaxErrorString = 1024;

// In place of a send buffer: the input lies in the receive buffer.
inline void* in_place() { return reinterpret_cast<void*>(-1); }

struct Status {
  int MPI_SOURCE;
  int MPI_TAG;
  alignas(void*) unsigned char native[48];  // the library's own status
};

// Each pointer has the name of the function of MPI that it calls, and its arguments.
struct Functions {
  int (*MPI_Init_thread)(ThreadLevel required, ThreadLevel* provided);
  int (*MPI_Query_thread)(ThreadLevel* provided);
  int (*MPI_Finalize)();
  int (*MPI_Finalized)(int* flag);
  int (*MPI_Abort)(Comm comm, int status);
  int (*MPI_Error_string)(int code, char* text, int* length);
  int (*MPI_Get_library_version)(char* text, int* length);

  int (*MPI_Comm_rank)(Comm comm, int* rank);
  int (*MPI_Comm_size)(Comm comm, int* size);
  int (*MPI_Comm_dup)(Comm comm, Comm* result);
  int (*MPI_Comm_split)(Comm comm, int color, int key, Comm* result);
  int (*MPI_Comm_free)(Comm* comm);
  int (*MPI_Comm_get_attr)(Comm comm, Attribute attribute, void* value, int* found);
  int (*MPI_Comm_set_errhandler)(Comm comm, ErrorHandler handler);

  int (*MPI_Send)(const void* data, int count, Datatype type, int to, int tag, Comm comm);
  int (*MPI_Recv)(void* data, int count, Datatype type, int from, int tag, Comm comm,
                  Status* status);
  int (*MPI_Isend)(const void* data, int count, Datatype type, int to, int tag, Comm comm,
                   Request* request);
  int (*MPI_Irecv)(void* data, int count, Datatype type, int from, int tag, Comm comm,
                   Request* request);
  int (*MPI_Iprobe)(int from, int tag, Comm comm, int* flag, Status* status);
  int (*MPI_Get_count)(const Status* status, Datatype type, int* count);
  int (*MPI_Test)(Request* request, int* flag, Status* status);
  int (*MPI_Wait)(Request* request, Status* status);

  int (*MPI_Barrier)(Comm comm);
  int (*MPI_Ibarrier)(Comm comm, Request* request);
  int (*MPI_Bcast)(void* data, int count, Datatype type, int root, Comm comm);
  int (*MPI_Allgather)(const void* in, int in_count, Datatype in_type, void* out, int out_count,
                       Datatype out_type, Comm comm);
  int (*MPI_Allreduce)(const void* in, void* out, int count, Datatype type, Op op, Comm comm);
  int (*MPI_Iallreduce)(const void* in, void* out, int count, Datatype type, Op op, Comm comm,
                        Request* request);

  // Has MPI_Finalize call `function` first, by an attribute of MPI_COMM_SELF. Once.
  int (*call_in_finalize)(void (*function)());

  const char* built_with;  // the MPI whose header the translation was compiled with
  uintptr_t world;         // its MPI_COMM_WORLD
};

// What a translation exports, under the name kEntryPoint.
using EntryPoint = const Functions*();
constexpr const char* kEntryPoint = "easyddl_mpi_functions";

}  // namespace easyddl::mpi
