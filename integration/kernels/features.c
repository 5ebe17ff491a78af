/* What a kernel offers of what Stockade is built on, each found by trying it: one line `FEATURE name | result`.
 * Runs as root in a guest, with cgroup2 at /sys/fs/cgroup; argument: a directory on the file system to be idmapped. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/mount.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define CG "/sys/fs/cgroup/"
#define INTO_CGROUP 0x200000000ULL /* clone3(2), CLONE_INTO_CGROUP */

static void say(const char *name, const char *result) { printf("FEATURE %s | %s\n", name, result); fflush(stdout); }
static const char *result(long ret) { return ret >= 0 ? "yes" : strerrorname_np(errno); }

static int put(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) return -1;
    long n = write(fd, text, strlen(text));
    close(fd);
    return n < 0 ? -1 : 0;
}

static void born_into(const char *name, const char *cgroup)
{
    struct { uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid, set_tid_size, cgroup; } args = {0};
    int dir = open(cgroup, O_RDONLY | O_DIRECTORY | O_CLOEXEC), status;
    args.flags = INTO_CGROUP;
    args.exit_signal = SIGCHLD;
    args.cgroup = dir;
    long pid = dir < 0 ? -1 : syscall(SYS_clone3, &args, sizeof args);
    if (pid == 0) _exit(0);
    if (pid < 0) { say(name, result(pid)); return; }
    waitpid(pid, &status, 0);
    say(name, WIFSIGNALED(status) ? "newborn killed" : "yes");
}

static void cgroups(void)
{
    if (access(CG "cgroup.controllers", F_OK) != 0) { say("cgroup2 at /sys/fs/cgroup", "no"); return; }
    say("cgroup2 at /sys/fs/cgroup", "yes");
    mkdir(CG "features", 0755);
    mkdir(CG "features/a", 0755);
    mkdir(CG "features/b", 0755);
    born_into("CLONE_INTO_CGROUP", CG "features/a");
    say("cgroup.kill", result(put(CG "features/cgroup.kill", "1")));
    born_into("CLONE_INTO_CGROUP, a cgroup killed before", CG "features/a");
    const char *leaves[] = {"a", "b"};
    put(CG "features/cgroup.subtree_control", "+memory");
    say("memory.oom.group", result(put(CG "features/b/memory.oom.group", "1")));
    say("memory.peak", result(access(CG "features/b/memory.peak", F_OK)));
    say("memory.swap.max", result(put(CG "features/b/memory.swap.max", "0")));
    put(CG "features/cgroup.subtree_control", "+pids");
    say("pids.peak", result(access(CG "features/b/pids.peak", F_OK)));
    say("pressure (PSI)", result(access(CG "features/b/memory.pressure", F_OK)));
    for (int i = 0; i < 2; i++) {
        char path[64];
        snprintf(path, sizeof path, CG "features/%s", leaves[i]);
        rmdir(path);
    }
    rmdir(CG "features");
}

static void idmap(const char *name, int tree)
{
    int ready[2], go[2];
    char byte, path[64];
    if (tree < 0) { say(name, result(tree)); return; }
    if (pipe(ready) || pipe(go)) exit(1);
    pid_t pid = fork();
    if (pid == 0) {
        if (unshare(CLONE_NEWUSER) != 0) _exit(1);
        (void)!write(ready[1], "r", 1);
        (void)!read(go[0], &byte, 1);
        _exit(0);
    }
    (void)!read(ready[0], &byte, 1);
    snprintf(path, sizeof path, "/proc/%d/uid_map", pid);
    put(path, "0 100000 65536");
    snprintf(path, sizeof path, "/proc/%d/gid_map", pid);
    put(path, "0 100000 65536");
    snprintf(path, sizeof path, "/proc/%d/ns/user", pid);
    struct mount_attr attr = {.attr_set = MOUNT_ATTR_IDMAP, .userns_fd = open(path, O_RDONLY | O_CLOEXEC)};
    say(name, result(syscall(SYS_mount_setattr, tree, "", AT_EMPTY_PATH, &attr, sizeof attr)));
    (void)!write(go[1], "g", 1);
    waitpid(pid, NULL, 0);
}

static void notify(void)
{
    int status;
    struct sock_filter allow = {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW};
    struct sock_fprog program = {1, &allow};
    if (fork() == 0) {
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        /* SECCOMP_FILTER_FLAG_NEW_LISTENER | SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV */
        int fd = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, (1 << 3) | (1 << 5), &program);
        say("seccomp notify, WAIT_KILLABLE_RECV", result(fd));
        /* SECCOMP_IOCTL_NOTIF_SET_FLAGS with SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP */
        say("seccomp notify, SYNC_WAKE_UP", result(fd < 0 ? -1 : ioctl(fd, _IOW('!', 4, uint64_t), 1UL)));
        _exit(0);
    }
    wait(&status);
}

int main(int argc, char **argv)
{
    char text[32];
    long abi = syscall(SYS_landlock_create_ruleset, NULL, 0, 1), errata = syscall(SYS_landlock_create_ruleset, NULL, 0, 2);
    snprintf(text, sizeof text, abi < 0 ? "none" : "%ld", abi);
    say("Landlock ABI", text);
    snprintf(text, sizeof text, errata < 0 ? "unknown" : "0x%lx", errata);
    say("Landlock errata", text);
    cgroups();
    notify();
    struct { uint64_t flags, mode, resolve; } how = {O_RDONLY, 0, 0x08}; /* RESOLVE_BENEATH */
    say("openat2", result(syscall(SYS_openat2, AT_FDCWD, ".", &how, sizeof how)));
    const char *on_disk = argc > 1 ? argv[1] : "/";
    idmap("idmapped mount, ext4", syscall(SYS_open_tree, AT_FDCWD, on_disk, OPEN_TREE_CLONE));
    int fs = syscall(SYS_fsopen, "tmpfs", 0);
    syscall(SYS_fsconfig, fs, 6 /* FSCONFIG_CMD_CREATE */, NULL, NULL, 0);
    idmap("idmapped mount, tmpfs", syscall(SYS_fsmount, fs, 0, 0));
    return 0;
}
