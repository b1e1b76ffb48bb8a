/* The machine's own hand-offs between two processes on two CPUs, there and back: what a step through fp9d and a duck is compared with.
 *
 *   fp9-pingpong [--bytes N] [--rounds N] CPU-A CPU-B
 *
 * Prints one line of JSON, the median over rounds of microseconds for each way:
 *   spin          a word each way in shared memory, both spinning
 *   spin_bytes    the same with N bytes before each word, written by one side and read by the other
 *   futex         both sleep on a futex, each wakes the other
 *   futex_eventfd A wakes B by a futex, B wakes A, which sleeps in epoll, by an eventfd: as fp9d and a duck do
 *   socket        a byte over an AF_UNIX stream socket, both blocking in recv
 */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/base/futex.h"
#include "proto/base/size.h"
#include "proto/base/spin.h"
#include "tests/bench/pin.h"
#include "tests/bench/stats.h"

#define ROUNDS_DEFAULT 11
#define ROUNDS_MAX 100
#define BYTES_DEFAULT 512
#define BYTES_MAX 65536

enum way { SPIN, SPIN_BYTES, FUTEX, FUTEX_EVENTFD, SOCKET, WAYS };
static const char *const names[WAYS] = {"spin", "spin_bytes", "futex", "futex_eventfd", "socket"};
static const uint32_t turns[WAYS] = {20000, 20000, 1000, 1000, 1000};

struct ball {
    _Alignas(128) _Atomic uint32_t ping;
    _Alignas(128) _Atomic uint32_t pong;
    _Alignas(128) uint8_t there[BYTES_MAX];
    uint8_t back[BYTES_MAX];
};

static struct ball *ball;
static uint32_t bytes = BYTES_DEFAULT;
static int sockets[2], bell, waiter;

static void spin_for(_Atomic uint32_t *word, uint32_t value)
{
    while (atomic_load_explicit(word, memory_order_acquire) != value)
        spin_pause();
}

static void sleep_for(_Atomic uint32_t *word, uint32_t value)
{
    uint32_t now;
    while ((now = atomic_load_explicit(word, memory_order_acquire)) != value)
        (void)futex_wait_shared(word, now, 0);
}

static void copy(uint8_t *to, const uint8_t *from)
{
    memcpy(to, from, bytes);
    __asm__ volatile("" : : "r"(to) : "memory");
}

static void tell(enum way way, bool back, uint32_t turn)
{
    static uint8_t mine[BYTES_MAX];
    _Atomic uint32_t *word = back ? &ball->pong : &ball->ping;
    char byte = 0;
    if (way == SOCKET) {
        if (send(sockets[back], &byte, 1, MSG_NOSIGNAL) != 1)
            exit(EXIT_FAILURE);
        return;
    }
    if (way == SPIN_BYTES)
        copy(back ? ball->back : ball->there, mine);
    atomic_store_explicit(word, turn, memory_order_release);
    if (way == FUTEX || (way == FUTEX_EVENTFD && !back))
        futex_wake_shared(word, 1);
    else if (way == FUTEX_EVENTFD)
        (void)eventfd_write(bell, 1);
}

static void await(enum way way, bool back, uint32_t turn)
{
    static uint8_t mine[BYTES_MAX];
    _Atomic uint32_t *word = back ? &ball->pong : &ball->ping;
    char byte;
    struct epoll_event event;
    if (way == SOCKET) {
        if (recv(sockets[!back], &byte, 1, 0) != 1)
            exit(EXIT_FAILURE);
        return;
    }
    if (way == FUTEX || (way == FUTEX_EVENTFD && !back))
        sleep_for(word, turn);
    else if (way == FUTEX_EVENTFD)
        while (atomic_load_explicit(word, memory_order_acquire) != turn)
            (void)epoll_wait(waiter, &event, 1, -1);
    else
        spin_for(word, turn);
    if (way == SPIN_BYTES)
        copy(mine, back ? ball->back : ball->there);
}

static void answer(enum way way, int cpu)
{
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    pin(cpu);
    for (uint32_t turn = 1; turn <= turns[way]; turn++) {
        await(way, false, turn);
        tell(way, true, turn);
    }
    _exit(0);
}

/* Microseconds there and back. */
static double measure(enum way way, int cpu)
{
    atomic_store(&ball->ping, 0);
    atomic_store(&ball->pong, 0);
    pid_t child = fork();
    if (child == 0)
        answer(way, cpu);
    if (child < 0)
        exit(EXIT_FAILURE);
    uint64_t start = 0;
    uint32_t warm = turns[way] / 10;
    for (uint32_t turn = 1; turn <= turns[way]; turn++) {
        if (turn == warm)
            start = clock_now_ns();
        tell(way, false, turn);
        await(way, true, turn);
    }
    double us = (double)(clock_now_ns() - start) / (turns[way] - warm + 1) / 1e3;
    waitpid(child, NULL, 0);
    return us;
}

static int usage(void)
{
    fprintf(stderr, "usage: fp9-pingpong [--bytes N] [--rounds N] CPU-A CPU-B\n");
    return 2;
}

int main(int argc, char **argv)
{
    uint64_t rounds = ROUNDS_DEFAULT, number, cpus[2];
    int at = 1;
    for (; at + 1 < argc && argv[at][0] == '-'; at += 2) {
        if (strcmp(argv[at], "--bytes") == 0 && size_parse_u64(argv[at + 1], 1, BYTES_MAX, &number))
            bytes = (uint32_t)number;
        else if (strcmp(argv[at], "--rounds") != 0 || !size_parse_u64(argv[at + 1], 1, ROUNDS_MAX, &rounds))
            return usage();
    }
    if (argc - at != 2 || !size_parse_u64(argv[at], 0, CPU_SETSIZE - 1, &cpus[0]) ||
        !size_parse_u64(argv[at + 1], 0, CPU_SETSIZE - 1, &cpus[1]))
        return usage();
    ball = mmap(NULL, sizeof *ball, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    bell = eventfd(0, EFD_NONBLOCK);
    waiter = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN | EPOLLET};
    if (ball == MAP_FAILED || bell < 0 || waiter < 0 || epoll_ctl(waiter, EPOLL_CTL_ADD, bell, &event) < 0 ||
        socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) < 0) {
        perror("fp9-pingpong");
        return EXIT_FAILURE;
    }
    pin((int)cpus[0]);
    static double values[WAYS][ROUNDS_MAX];
    for (uint64_t round = 0; round < rounds; round++)
        for (int way = 0; way < WAYS; way++)
            values[way][round] = measure((enum way)way, (int)cpus[1]);
    printf("{\"bytes\": %u", bytes);
    for (int way = 0; way < WAYS; way++)
        printf(", \"%s\": %.3f", names[way], stats_median(values[way], rounds));
    printf("}\n");
    return EXIT_SUCCESS;
}
