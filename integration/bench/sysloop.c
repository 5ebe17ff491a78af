/* sysloop: cost per system call, to compare inside and outside a sandbox.  Static: gcc -O2 -static -o sysloop sysloop.c
 * usage: sysloop [SCALE] [DIR]   prints "name ns" per loop, the best of 3; DIR must be writable (default .)
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
static uint64_t now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1000000000ull + t.tv_nsec; }
#define LOOP(name, cnt, body) do { double best = 1e18; for (int rep = 0; rep < 3; rep++) { uint64_t t = now(); \
    for (int i = 0; i < (cnt); i++) { body; } double d = (double)(now() - t) / (cnt); if (d < best) best = d; } printf("%s %.1f\n", name, best); } while (0)
int main(int argc, char **argv) {
    int s = argc > 1 ? atoi(argv[1]) : 100;
    if (argc > 2 && chdir(argv[2])) return 1;
    struct stat st;
    char b[64] = {0};
    int fd = open("sl.tmp", O_CREAT | O_RDWR, 0644);
    if (fd < 0 || write(fd, b, 64) != 64) { perror("sl.tmp"); return 1; }
    LOOP("getppid", 3000 * s, syscall(SYS_getppid));
    LOOP("pread64", 2000 * s, if (pread(fd, b, 8, 0) < 0) return 1);
    LOOP("openat+close(ws)", 300 * s, int f = open("sl.tmp", O_RDONLY); if (f < 0) return 1; close(f));
    LOOP("openat+close(deep)", 300 * s, int f = open("/usr/lib/x86_64-linux-gnu/libc.so.6", O_RDONLY); if (f < 0) return 1; close(f));
    LOOP("stat(deep)", 300 * s, if (stat("/usr/lib/x86_64-linux-gnu/libc.so.6", &st)) return 1);
    LOOP("creat+unlink", 50 * s, int f = open("sl2.tmp", O_CREAT | O_WRONLY, 0644); if (f < 0) return 1; close(f); unlink("sl2.tmp"));
    LOOP("fork+wait", 2 * s, pid_t p = fork(); if (p == 0) _exit(0); waitpid(p, NULL, 0));
    unlink("sl.tmp");
    return 0;
}
