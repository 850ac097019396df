/* copy_roof.c - the machine's copy bandwidth. */
#include "copy_roof.h"

#include "program.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PASSES = 7, THREADS_MAX = 256 };
static const size_t COPY_BYTES = (size_t)256 << 20; /* far beyond any cache, in all */

typedef struct slice {
    char *to;
    const char *from;
    size_t bytes;
} slice;

static void *copy_slice(void *slice_of_copy)
{
    const slice *s = slice_of_copy;
    memcpy(s->to, s->from, s->bytes);
    return NULL;
}

/* One pass; seconds, or 0 when a thread could not start. */
static double copy_once(slice *slices, int threads)
{
    pthread_t ids[THREADS_MAX];
    int started = 1;
    double start = seconds_now();
    while (started < threads &&
           pthread_create(&ids[started], NULL, copy_slice, &slices[started]) == 0)
        started++;
    copy_slice(&slices[0]);
    for (int i = 1; i < started; i++)
        pthread_join(ids[i], NULL);
    return started == threads ? seconds_now() - start : 0;
}

static int by_value(const void *x, const void *y)
{
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

double copy_bandwidth(int threads)
{
    slice slices[THREADS_MAX];
    double times[PASSES];
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    threads = threads > 0 ? threads : (int)processors;
    threads = threads < 1 ? 1 : threads > THREADS_MAX ? THREADS_MAX : threads;
    size_t part = COPY_BYTES / (size_t)threads;
    char *from = malloc(COPY_BYTES), *to = malloc(COPY_BYTES);
    if (!from || !to) {
        free(from);
        free(to);
        return 0;
    }
    memset(from, 1, COPY_BYTES);
    memset(to, 2, COPY_BYTES);
    for (int i = 0; i < threads; i++)
        slices[i] = (slice){to + (size_t)i * part, from + (size_t)i * part, part};
    for (int i = 0; i < PASSES; i++)
        times[i] = copy_once(slices, threads);
    qsort(times, PASSES, sizeof *times, by_value);
    free(from);
    free(to);
    return times[0] > 0 ? 2.0 * (double)part * threads / times[PASSES / 2] : 0;
}
