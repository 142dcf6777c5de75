/* To be preloaded: while REFUSE_THREADS is set, the system's limit of threads is reached once so
   many have been started. A real limit does not hold for root, and would hold for all of a user's
   processes. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

typedef int Create(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                   void *argument) {
  static atomic_int started = 0;
  const char *allowed = getenv("REFUSE_THREADS");
  if (allowed != NULL && atomic_fetch_add(&started, 1) >= atoi(allowed)) return EAGAIN;
  Create *create = (Create *)dlsym(RTLD_NEXT, "pthread_create");
  return create(thread, attributes, run, argument);
}
