// MPI's usual names, for whichever MPI library is loaded.
//
// Functions are called by EASYDDL_MPI, which throws their errors, or through mpi_functions().
#pragma once

#include "mpi/functions.h"

namespace easyddl {

using MPI_Comm = mpi::Comm;
using MPI_Request = mpi::Request;
using MPI_Status = mpi::Status;

constexpr int MPI_SUCCESS = 0;  // in all libraries

constexpr auto MPI_COMM_NULL = mpi::Comm::null;
constexpr auto MPI_COMM_WORLD = mpi::Comm::world;
constexpr auto MPI_COMM_SELF = mpi::Comm::self;
constexpr auto MPI_REQUEST_NULL = mpi::Request::null;

constexpr auto MPI_BYTE = mpi::Datatype::byte;
constexpr auto MPI_CHAR = mpi::Datatype::character;
constexpr auto MPI_INT = mpi::Datatype::integer;
constexpr auto MPI_INT64_T = mpi::Datatype::int64;
constexpr auto MPI_UINT64_T = mpi::Datatype::uint64;
constexpr auto MPI_FLOAT = mpi::Datatype::float32;

constexpr auto MPI_SUM = mpi::Op::sum;
constexpr auto MPI_MIN = mpi::Op::min;
constexpr auto MPI_MAX = mpi::Op::max;
constexpr auto MPI_BOR = mpi::Op::bit_or;

constexpr auto MPI_TAG_UB = mpi::Attribute::tag_upper_bound;
constexpr auto MPI_ERRORS_RETURN = mpi::ErrorHandler::return_errors;
constexpr auto MPI_THREAD_MULTIPLE = mpi::ThreadLevel::multiple;

constexpr int MPI_ANY_SOURCE = mpi::kAnySource;
constexpr int MPI_ANY_TAG = mpi::kAnyTag;
constexpr int MPI_UNDEFINED = mpi::kUndefined;
constexpr MPI_Status* MPI_STATUS_IGNORE = nullptr;
inline void* const MPI_IN_PLACE = mpi::in_place();

// Returns the functions of the library that load_mpi has loaded.
const mpi::Functions& mpi_functions();

// Throws an Error with `call` and MPI's text for `code`, unless `code` is MPI_SUCCESS.
void check_mpi(int code, const char* call);

}  // namespace easyddl

#define EASYDDL_MPI(call, ...) \
  ::easyddl::check_mpi(::easyddl::mpi_functions().call(__VA_ARGS__), #call)
