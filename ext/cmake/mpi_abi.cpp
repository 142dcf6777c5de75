// Compiles if mpi.h is of the ABI that a macro names. found_mpi.cmake tries one after another.
#include <mpi.h>

#if defined(EASYDDL_IS_openmpi)
constexpr bool is_it =
#if defined(OPEN_MPI)
    true;
#else
    false;
#endif

#elif defined(EASYDDL_IS_mpich)
// Handles are integers.
constexpr bool is_it = sizeof(MPI_Comm) == sizeof(int);

#elif defined(EASYDDL_IS_abi)
// The standard ABI, of MPI 5.0.
constexpr bool is_it =
#if defined(MPI_ABI_VERSION)
    true;
#else
    false;
#endif
#endif

static_assert(is_it);

int main() {}
