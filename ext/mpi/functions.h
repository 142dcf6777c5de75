// The MPI functions that the engine calls, with types that are the same for every MPI library.
//
// MPI libraries differ in their binary interface (ABI): a communicator is an integer in MPICH and a
// pointer in Open MPI. The engine is compiled once, with the types below. A small library for each
// ABI translates them: native/translation.cpp.
#pragma once

#include <cstddef>
#include <cstdint>

namespace easyddl::mpi {

// Handles. The named values stand for the library's constants. All other values are the library's
// own handles, which are always larger.
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
constexpr int kMaxLibraryVersion = 8192;  // in bytes
constexpr int kMaxErrorString = 1024;

// Stands for MPI_IN_PLACE: the input is in the receive buffer.
inline void* in_place() { return reinterpret_cast<void*>(-1); }

struct Status {
  int MPI_SOURCE;
  int MPI_TAG;
  alignas(void*) unsigned char native[48];  // the library's own status
};

// Each pointer has the name and the arguments of the MPI function that it calls.
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

  // Registers a function that MPI_Finalize calls first, by an attribute of MPI_COMM_SELF. Called
  // once.
  int (*call_in_finalize)(void (*function)());

  const char*
      built_with;   // name and version of the MPI with whose header the translation was compiled
  uintptr_t world;  // its MPI_COMM_WORLD
};

// The function that a translation exports under the name kEntryPoint.
using EntryPoint = const Functions*();
constexpr const char* kEntryPoint = "easyddl_mpi_functions";

}  // namespace easyddl::mpi
