// For LD_PRELOAD: pread() of the file that HANGING_READS names never returns, as on a network disk whose server is gone.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void hang_where_wanted(int fd) {
  const char* wanted = getenv("HANGING_READS");
  char link[64];
  char path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t length = wanted == NULL ? -1 : readlink(link, path, sizeof path - 1);
  if (length <= 0) return;
  path[length] = 0;
  if (strcmp(path, wanted) != 0) return;
  fputs("a read hangs\n", stderr);
  for (;;) pause();
}

ssize_t pread(int fd, void* into, size_t bytes, off_t offset) {
  hang_where_wanted(fd);
  static ssize_t (*next)(int, void*, size_t, off_t);
  if (next == NULL) *(void**)&next = dlsym(RTLD_NEXT, "pread");
  return next(fd, into, bytes, offset);
}

ssize_t pread64(int fd, void* into, size_t bytes, off64_t offset) {
  return pread(fd, into, bytes, offset);
}
