/* Processes that fork and exit all the time, each gone as soon as its child has begun: `forkers COUNT WAY...`, for some seconds at most. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/sysinfo.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static time_t end;

/* Where there is no room for another process, it is tried until there is. The machine keeps some for others. */
static pid_t begin(void) {
  struct sysinfo machine;
  pid_t pid;
  do {
    if (time(0) >= end) _exit(0);
    sysinfo(&machine);
  } while (machine.procs > 8000 || (pid = fork()) < 0);
  return pid;
}

static int has(char **argv, const char *way) {
  for (argv += 2; *argv; argv++)
    if (!strcmp(*argv, way)) return 1;
  return 0;
}

int main(int count, char **argv) {
  if (count < 2) return 2;
  int session = has(argv, "setsid"), twice = has(argv, "twice"), brood = has(argv, "brood");
  int traced = has(argv, "traced"), stopped = has(argv, "stopped"), wakes = has(argv, "wakes");
  end = time(0) + 20;
  if (has(argv, "deaf")) {
    signal(SIGTERM, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
  }
  if (write(1, "forking\n", 8) < 0) return 1;
  for (int i = 0; i < atoi(argv[1]); i++) {
    if (begin()) continue;
    for (;;) {
      if (session) setsid();
      if (wakes) kill(0, SIGCONT);
      if (twice && begin()) _exit(0);
      if (brood && !begin()) usleep(20000), _exit(0);
      if (stopped && random() % 64 == 0 && !begin()) raise(SIGSTOP), _exit(0);
      pid_t child = begin();
      if (child && traced) waitpid(child, 0, __WALL), ptrace(PTRACE_DETACH, child, 0, 0);
      if (child) _exit(0);
      if (traced) ptrace(PTRACE_TRACEME, 0, 0, 0), raise(SIGSTOP);
    }
  }
  while (time(0) < end) pause();
}
