/* To be preloaded: the system's limit of threads is reached while REFUSE_THREADS is set. A real
   limit does not hold for root, and would hold for all of a user's processes. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

typedef int Create(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                   void *argument) {
  if (getenv("REFUSE_THREADS") != NULL) return EAGAIN;
  Create *create = (Create *)dlsym(RTLD_NEXT, "pthread_create");
  return create(thread, attributes, run, argument);
}
