/* Host whose file system is full while the file in DISK_FULL exists, for disks of virtual machines: see ../tests/machine_disks.rs. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

static int is_full(int file) {
  static const char disk[] = "/data/disk";
  const char *flag = getenv("DISK_FULL");
  char name[64], path[4096];
  ssize_t length;
  if (!flag || access(flag, F_OK)) return 0;
  snprintf(name, sizeof name, "/proc/self/fd/%d", file);
  length = readlink(name, path, sizeof path - 1);
  if (length < (ssize_t)sizeof disk) return 0;
  path[length] = 0;
  return !strcmp(path + length - (sizeof disk - 1), disk);
}

ssize_t pwrite64(int file, const void *data, size_t length, off64_t offset) {
  ssize_t (*write)(int, const void *, size_t, off64_t);
  *(void **)&write = dlsym(RTLD_NEXT, "pwrite64");
  if (is_full(file)) return errno = ENOSPC, -1;
  return write(file, data, length, offset);
}

ssize_t pwritev64(int file, const struct iovec *parts, int count, off64_t offset) {
  ssize_t (*write)(int, const struct iovec *, int, off64_t);
  *(void **)&write = dlsym(RTLD_NEXT, "pwritev64");
  if (is_full(file)) return errno = ENOSPC, -1;
  return write(file, parts, count, offset);
}
