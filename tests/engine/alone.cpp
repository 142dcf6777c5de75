// The tests that need neither other ranks nor MPI.
#include "trial.h"

int main() { return trial::run("", true); }
