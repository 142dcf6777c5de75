// Compiles only if mpi.h has the ABI that a macro names. found_mpi.cmake tries one ABI after the
// other.
#include <mpi.h>

#if defined(EASYDDL_IS_openmpi)
constexpr bool matches =
#if defined(OPEN_MPI)
    true;
#else
    false;
#endif

#elif defined(EASYDDL_IS_mpich)
// Handles are integers.
constexpr bool matches = sizeof(MPI_Comm) == sizeof(int);

#elif defined(EASYDDL_IS_abi)
// The standard ABI, of MPI 5.0.
constexpr bool matches =
#if defined(MPI_ABI_VERSION)
    true;
#else
    false;
#endif
#endif

static_assert(matches);

int main() {}
