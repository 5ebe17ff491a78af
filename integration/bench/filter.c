/* filter: writes a seccomp program of N linear rules that refuse numbers no system call has, for `bwrap --seccomp`.
 * build: cc -O2 -o filter filter.c; usage: filter N >FILE */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static void put(struct sock_filter i) { if (write(1, &i, sizeof i) != sizeof i) exit(1); }
int main(int argc, char **argv) {
    int n = argc > 1 ? atoi(argv[1]) : 75;
    put((struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)));
    for (int i = 0; i < n; i++) {
        put((struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 1000 + i, 0, 1));
        put((struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM));
    }
    put((struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
    return 0;
}
