/* launch: time command lines side by side, interleaved, with a pause before every launch.
 *
 * build: cc -O2 -o launch launch.c
 * usage: launch ROUNDS GAP_MS BASE[,BASE] FILE
 * FILE:  one 'name<TAB>command line' per line ('#' comments), words split on blanks, no shell. A word `9<PATH` opens
 *        PATH as descriptor 9 for that command.
 * Start-up uses posix_spawn; the clock stops when the spawned process is reaped. Every round runs every command once,
 * in rotated order. A ratio is taken within a round, so what a busy machine does to both sides cancels.
 * maxRSS is ru_maxrss of the spawned process and of the descendants that it waited for (the largest single one).
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
extern char **environ;
#define MAXC 32
static struct cmd { char *name, *fd9, *av[512]; int n, failed; long rss; double *us; } cmds[MAXC];
static int nc;
static uint64_t now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1000000000ull + t.tv_nsec; }
static int cmpd(const void *a, const void *b) { double x = *(const double *)a, y = *(const double *)b; return (x > y) - (x < y); }
static double at(const double *v, int n, double p) { return v[(int)((n - 1) * p + .5)]; }

static int run(struct cmd *c, double *us, long *rss) {
    posix_spawn_file_actions_t fa;
    posix_spawnattr_t attr;
    sigset_t none;
    posix_spawn_file_actions_init(&fa);
    posix_spawnattr_init(&attr);
    sigemptyset(&none);
    posix_spawnattr_setsigmask(&attr, &none);
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK);
    posix_spawn_file_actions_addopen(&fa, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&fa, 1, "/dev/null", O_WRONLY, 0);
    if (!getenv("LAUNCH_VERBOSE")) posix_spawn_file_actions_adddup2(&fa, 1, 2);
    if (c->fd9) posix_spawn_file_actions_addopen(&fa, 9, c->fd9, O_RDONLY, 0);
    pid_t pid;
    struct rusage ru;
    int status;
    uint64_t t = now();
    int e = posix_spawnp(&pid, c->av[0], &fa, &attr, c->av, environ);
    if (e) { fprintf(stderr, "launch: %s: %s\n", c->av[0], strerror(e)); exit(1); }
    while (wait4(pid, &status, 0, &ru) < 0 && errno == EINTR);
    *us = (now() - t) / 1e3;
    *rss = ru.ru_maxrss;
    posix_spawn_file_actions_destroy(&fa);
    posix_spawnattr_destroy(&attr);
    return status;
}

static void load(const char *file) {
    static char line[1 << 16];
    FILE *f = fopen(file, "r");
    if (!f) { perror(file); exit(2); }
    while (nc < MAXC && fgets(line, sizeof line, f)) {
        char *s = strdup(line), *tab = strchr(s, '\t');
        if (*s == '#' || !tab) continue;
        *tab = 0;
        struct cmd *c = &cmds[nc++];
        c->name = s;
        for (char *w = strtok(tab + 1, " \n"); w && c->n < 511; w = strtok(NULL, " \n")) {
            if (!strncmp(w, "9<", 2)) c->fd9 = w + 2;
            else c->av[c->n++] = w;
        }
    }
    fclose(f);
}

int main(int argc, char **argv) {
    if (argc != 5) return fprintf(stderr, "usage: launch ROUNDS GAP_MS BASE[,BASE] FILE\n"), 2;
    int n = atoi(argv[1]), gap = atoi(argv[2]);
    load(argv[4]);
    for (int i = 0; i < nc; i++) cmds[i].us = calloc(n, sizeof(double));
    for (int round = -3; round < n; round++)
        for (int j = 0; j < nc; j++) {
            struct cmd *c = &cmds[(j + round + 3) % nc];
            double us;
            long rss;
            usleep(gap * 1000);
            int status = run(c, &us, &rss);
            if (round < 0) continue;
            c->us[round] = us;
            if (rss > c->rss) c->rss = rss;
            c->failed += status != 0;
        }
    double *v = calloc(n, sizeof(double));
    printf("%-34s %8s %8s %8s %8s %8s %10s %5s\n", "wall time, us", "min", "q1", "median", "q3", "max", "maxRSS KiB", "fail");
    for (int i = 0; i < nc; i++) {
        memcpy(v, cmds[i].us, n * sizeof *v);
        qsort(v, n, sizeof *v, cmpd);
        printf("%-34s %8.0f %8.0f %8.0f %8.0f %8.0f %10ld %5d\n", cmds[i].name, v[0], at(v, n, .25), at(v, n, .5), at(v, n, .75),
               v[n - 1], cmds[i].rss, cmds[i].failed);
    }
    for (char *base = strtok(argv[3], ","); base; base = strtok(NULL, ",")) {
        int b = -1;
        for (int i = 0; i < nc; i++) if (!strcmp(cmds[i].name, base)) b = i;
        if (b < 0) continue;
        double *bv = calloc(n, sizeof(double));
        memcpy(bv, cmds[b].us, n * sizeof *bv);
        qsort(bv, n, sizeof *bv, cmpd);
        printf("\n%-34s %8s %8s %8s %8s %8s %10s\n", "", "min", "q1", "median", "q3", "max", "medians");
        printf("ratio to %s, within a round\n", base);
        for (int i = 0; i < nc; i++) {
            for (int r = 0; r < n; r++) v[r] = cmds[i].us[r] / cmds[b].us[r];
            qsort(v, n, sizeof *v, cmpd);
            double lo = v[0], q1 = at(v, n, .25), med = at(v, n, .5), q3 = at(v, n, .75), hi = v[n - 1];
            memcpy(v, cmds[i].us, n * sizeof *v);
            qsort(v, n, sizeof *v, cmpd);
            printf("%-34s %8.2f %8.2f %8.2f %8.2f %8.2f %10.2f\n", cmds[i].name, lo, q1, med, q3, hi, at(v, n, .5) / at(bv, n, .5));
        }
        free(bv);
    }
    return 0;
}
