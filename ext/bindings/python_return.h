// How a thread takes Python's lock again.
#pragma once

#include <Python.h>

#ifdef __cplusplus
extern "C" {
#endif

// PyEval_RestoreThread, but a thread that comes back after Python has ended sleeps until the
// process ends. Before 3.14 Python would end it by pthread_exit, which unwinds its stack: the
// unwinding must not leave a destructor, and would end the process by SIGABRT.
void easyddl_return_to_python(PyThreadState* state);

#ifdef __cplusplus
}
#endif
