/* A name server that does not answer: see ../resolver.rs. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netdb.h>
#include <stdlib.h>
#include <unistd.h>

int getaddrinfo(const char *restrict node, const char *restrict service, const struct addrinfo *restrict hints,
                struct addrinfo **restrict found) {
  int (*ask)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
  const char *file = getenv("CHANCERY_TEST_RESOLVER_HANGS");

  *(void **)&ask = dlsym(RTLD_NEXT, "getaddrinfo");
  if (file && access(file, F_OK) == 0)
    sleep(30);
  return ask(node, service, hints, found);
}
