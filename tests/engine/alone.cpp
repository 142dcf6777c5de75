// The tests of what needs no other rank and no MPI.
#include "trial.h"

int main() { return trial::run("", true); }
