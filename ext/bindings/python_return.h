// Reacquires Python's lock.
#pragma once

#include <Python.h>

#ifdef __cplusplus
extern "C" {
#endif

// Like PyEval_RestoreThread, but a thread that returns after Python has ended sleeps until the
// process ends. Before 3.14 Python ends such a thread by pthread_exit, which unwinds its stack. The
// unwinding would reach a destructor, which it must not leave, and SIGABRT would end the process.
void easyddl_return_to_python(PyThreadState* state);

#ifdef __cplusplus
}
#endif
