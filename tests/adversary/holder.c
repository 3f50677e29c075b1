// What a run leaves behind to keep the locks of a daemon that it has killed, in ways that leave nothing to be seen in
// /proc: holder HOW DAEMON KEEPER READY LOCKED...
//
// HOW has some of these words:
//   ring     the locked files are registered with an io_uring, and have no descriptor
//   unseen   nor has that io_uring a descriptor
//   daemon   it takes a lock of its own beside READY and hides, as a daemon does
//   hop      eight processes, each of which forks and exits all the time
//   setsid   each of these in a session of its own
//
// It lowers its limit of file locks first, so that no mark of the daemon's runs tells of it.
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

// From linux/io_uring.h, which older systems do not have.
#define IO_URING_SETUP 425
#define IO_URING_REGISTER 427
#define REGISTER_FILES 2
#define REGISTER_RING_FDS 20

struct update {
  unsigned offset, reserved;
  unsigned long long data;
};

static void fail(const char *what) {
  perror(what);
  exit(1);
}

static int locked(const char *path) {
  int fd = open(path, O_RDONLY);
  // The dead daemon may have left the lock to a process that has just been forked.
  for (int n = 0; fd >= 0 && n < 500; n++) {
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) return fd;
    usleep(10000);
  }
  fail(path);
  return -1;
}

static void say_ready(const char *ready) {
  FILE *file = fopen(ready, "w");
  if (!file || fprintf(file, "%d\n", getpid()) < 0 || fclose(file)) fail(ready);
}

static void hop(int alone, const char *ready) {
  for (int n = 1; n < 8; n++)
    if (fork() == 0) break;
  say_ready(ready);
  // Not for ever: the test may fail.
  time_t end = time(NULL) + 60;
  while (time(NULL) < end) {
    if (fork()) _exit(0);
    if (alone) setsid(); else setpgid(0, 0);
  }
}

int main(int argc, char **argv) {
  const char *how = argv[1], *ready = argv[4];
  int daemon = atoi(argv[2]), keeper = atoi(argv[3]);
  signal(SIGTERM, SIG_IGN);
  signal(SIGHUP, SIG_IGN);
  if (fork()) _exit(0);
  setsid();
  if (fork()) _exit(0);
  // Its own session as well, as a server has one.
  setsid();
  struct rlimit low = {5, 5};
  if (setrlimit(RLIMIT_LOCKS, &low)) fail("setrlimit");
  char parameters[120] = {0};
  int ring = -1;
  if (strstr(how, "ring") && (ring = syscall(IO_URING_SETUP, 4, parameters)) < 0) fail("io_uring");
  kill(keeper, SIGSTOP);
  kill(daemon, SIGKILL);
  kill(keeper, SIGKILL);
  // A child takes the locks, so that the kernel names a process that is no more.
  int fds[8], count = 0;
  for (int n = 5; n < argc; n++) fds[count++] = open(argv[n], O_RDONLY);
  pid_t taker = fork();
  if (taker == 0) {
    for (int n = 0; n < count; n++) {
      int tries = 0;
      while (flock(fds[n], LOCK_EX | LOCK_NB) && ++tries < 500) usleep(10000);
      if (tries == 500) _exit(1);
    }
    _exit(0);
  }
  int status;
  if (waitpid(taker, &status, 0) != taker || status) fail("a lock is not to be had");
  if (ring >= 0) {
    if (syscall(IO_URING_REGISTER, ring, REGISTER_FILES, fds, count)) fail("register");
    for (int n = 0; n < count; n++) close(fds[n]);
  }
  if (strstr(how, "unseen")) {
    struct update update = {-1u, 0, ring};
    if (syscall(IO_URING_REGISTER, ring, REGISTER_RING_FDS, &update, 1) != 1) fail("register the ring");
    close(ring);
  }
  if (strstr(how, "daemon")) {
    char own[4096];
    snprintf(own, sizeof own, "%s.own", ready);
    close(open(own, O_WRONLY | O_CREAT, 0600));
    locked(own);
    prctl(PR_SET_DUMPABLE, 0);
  }
  if (strstr(how, "hop")) hop(strstr(how, "setsid") != NULL, ready);
  say_ready(ready);
  for (;;) pause();
}
