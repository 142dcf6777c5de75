/* In C, where a cleanup handler ends the unwinding of pthread_exit. In C++ the unwinder would go on
   to our frames, which know the unwinder of their own standard library only. */
#include "bindings/python_return.h"

#include <pthread.h>
#include <unistd.h>

static void sleep_for_good(void* unused) {
  (void)unused;
  for (;;) pause();
}

void easyddl_return_to_python(PyThreadState* state) {
  pthread_cleanup_push(sleep_for_good, NULL);
  PyEval_RestoreThread(state);
  pthread_cleanup_pop(0);
}
