// The least time in which processes of one node can sum vectors that lie in shared memory already: each adds its slice
// of all of them, block by block, and writes the sum to all.
//
//     shared_memory RANKS BYTES...     prints the median microseconds of each size, one per line
#define _GNU_SOURCE
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { BLOCK = 1 << 14, MOST = 64 };  // floats that are added and spread at a time; ranks

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e6 + t.tv_nsec * 1e-3;
}

static void* shared(size_t nbytes) {
    void* memory = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    return memory;
}

static void meet(atomic_int* gate, int n) {
    int round = atomic_load(gate + 16);
    if (atomic_fetch_add(gate, 1) == n - 1) {
        atomic_store(gate, 0);
        atomic_fetch_add(gate + 16, 1);
    } else {
        while (atomic_load(gate + 16) == round) sched_yield();
    }
}

static void add(float* restrict into, const float* restrict other, size_t n) {
    for (size_t i = 0; i < n; ++i) into[i] += other[i];
}

static void sum(float** vectors, int rank, int ranks, size_t n) {
    size_t end = n * (rank + 1) / ranks;
    for (size_t at = n * rank / ranks; at < end; at += BLOCK) {
        size_t count = end - at < BLOCK ? end - at : BLOCK;
        for (int r = 0; r < ranks; ++r) {
            if (r != rank) add(vectors[rank] + at, vectors[r] + at, count);
        }
        for (int r = 0; r < ranks; ++r) {
            if (r != rank) memcpy(vectors[r] + at, vectors[rank] + at, count * sizeof(float));
        }
    }
}

static int ascending(const void* a, const void* b) {
    return (*(const double*)a > *(const double*)b) - (*(const double*)a < *(const double*)b);
}

int main(int argc, char** argv) {
    int ranks = argc > 2 ? atoi(argv[1]) : 0, rank = 0;
    if (ranks < 1 || ranks > MOST) return fprintf(stderr, "usage: %s RANKS BYTES...\n", argv[0]), 2;
    size_t most = 0;
    for (int i = 2; i < argc; ++i) most = strtoull(argv[i], NULL, 10) > most ? strtoull(argv[i], NULL, 10) : most;
    float* vectors[MOST];
    for (int r = 0; r < ranks; ++r) vectors[r] = shared(most + 64);
    atomic_int* gate = shared(4096);
    while (rank < ranks - 1 && fork() == 0) ++rank;  // each child forks the next one
    memset(vectors[rank], 0, most);
    for (int i = 2; i < argc; ++i) {
        size_t nbytes = strtoull(argv[i], NULL, 10);
        int times = (int)(2e9 / (2e5 + 2.0 * nbytes));
        times = times < 7 ? 7 : times > 2001 ? 2001 : times;
        double* took = malloc(times * sizeof *took);
        for (int t = 0; t < times; ++t) {
            meet(gate, ranks);
            double begun = now();
            sum(vectors, rank, ranks, nbytes / sizeof(float));
            meet(gate, ranks);
            took[t] = now() - begun;
        }
        qsort(took, times, sizeof *took, ascending);
        if (rank == 0) printf("%.1f\n", took[times / 2]), fflush(stdout);
        free(took);
    }
    while (wait(NULL) > 0) {}
    return 0;
}
