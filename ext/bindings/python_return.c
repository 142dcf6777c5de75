/* This is C, because a cleanup handler in C stops the unwinding of pthread_exit. In C++ the
   unwinder would continue to frames that support only the unwinder of their standard library.
 */
#include "bindings/python_return.h"

#include <pthread.h>
#include <unistd.h>

static void sleep_forever(void* unused) {
  (void)unused;
  for (;;) pause();
}

void easyddl_return_to_python(PyThreadState* state) {
  pthread_cleanup_push(sleep_forever, NULL);
  PyEval_RestoreThread(state);
  pthread_cleanup_pop(0);
}
