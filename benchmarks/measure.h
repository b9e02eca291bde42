/* What both programs, upstream.c and load.c, measure with: a clock, a histogram, and the cost of a process. */
#pragma once
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { STAMP_DIGITS = 16 }; /* a chunk's text carries "@" and this many digits: the clock when it was written */

static inline int64_t now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

/* Counts by value, 64 steps for each power of two, so that a quantile is right within 2 %. */
enum { STEPS = 64, CELLS = STEPS * 40 };
struct histogram {
    uint64_t cells[CELLS], count;
};

static inline void histogram_add(struct histogram *h, int64_t value) {
    int64_t v = value < 0 ? 0 : value;
    int cell = (int)v;
    if (v >= STEPS) {
        int power = 63 - __builtin_clzll((unsigned long long)v);
        cell = (power - 5) * STEPS + (int)((v >> (power - 6)) & (STEPS - 1));
    }
    h->cells[cell < CELLS ? cell : CELLS - 1]++;
    h->count++;
}

static inline double histogram_quantile(const struct histogram *h, double q) {
    uint64_t wanted = (uint64_t)(q * (double)(h->count ? h->count - 1 : 0)) + 1, seen = 0;
    for (int cell = 0; cell < CELLS && h->count; cell++) {
        if ((seen += h->cells[cell]) < wanted)
            continue;
        if (cell < STEPS)
            return cell;
        int power = cell / STEPS + 5;
        return (double)(1LL << power) + ((double)(cell % STEPS) + 0.5) * (double)(1LL << (power - 6));
    }
    return 0;
}

static inline void histogram_print(const char *name, const struct histogram *h) {
    printf(", \"%s\": {\"p50\": %.0f, \"p90\": %.0f, \"p99\": %.0f, \"p999\": %.0f}", name, histogram_quantile(h, 0.5),
           histogram_quantile(h, 0.9), histogram_quantile(h, 0.99), histogram_quantile(h, 0.999));
}

/* Seconds of CPU that a process and all its threads have used, 0 when it is gone. */
static inline double process_cpu(int pid) {
    char path[64], line[1024] = {0};
    unsigned long user = 0, kernel = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "r");
    if (!file)
        return 0;
    if (fread(line, 1, sizeof line - 1, file)) {
        char *after_name = strrchr(line, ')'); /* the name may hold spaces */
        if (after_name)
            sscanf(after_name + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &kernel);
    }
    fclose(file);
    return (double)(user + kernel) / (double)sysconf(_SC_CLK_TCK);
}

/* Resident memory of a process in KiB, 0 when it is gone. */
static inline long process_rss(int pid) {
    char path[64], line[256];
    long rss = 0;
    snprintf(path, sizeof path, "/proc/%d/status", pid);
    FILE *file = fopen(path, "r");
    if (!file)
        return 0;
    while (fgets(line, sizeof line, file) && sscanf(line, "VmRSS: %ld", &rss) != 1)
        ;
    fclose(file);
    return rss;
}
