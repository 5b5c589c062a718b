/* Waits of C11 threads under libfaketime: see ../clock.rs. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/syscall.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

int cnd_timedwait(cnd_t *restrict condition, mtx_t *restrict mutex, const struct timespec *restrict until) {
  int (*wait)(cnd_t *, mtx_t *, const struct timespec *);
  struct timespec shown, real, then = *until;

  *(void **)&wait = dlsym(RTLD_NEXT, "cnd_timedwait");
  timespec_get(&shown, TIME_UTC);
  syscall(SYS_clock_gettime, CLOCK_REALTIME, &real); /* libfaketime does not see it */
  then.tv_sec += real.tv_sec - shown.tv_sec;
  then.tv_nsec += real.tv_nsec - shown.tv_nsec;
  if (then.tv_nsec < 0) {
    then.tv_nsec += 1000000000;
    then.tv_sec -= 1;
  } else if (then.tv_nsec >= 1000000000) {
    then.tv_nsec -= 1000000000;
    then.tv_sec += 1;
  }
  return wait(condition, mutex, &then);
}
