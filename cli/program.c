/* program.c - complaints, the terminal and common options. */
#include "program.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static char complaint[8192]; /* room for the longest path and what is wrong with it */

int complain(int code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(complaint, sizeof complaint, format, args);
    va_end(args);
    fprintf(stderr, "ffpa: %s\n", complaint);
    return code;
}

int complain_library(ffpa_status status)
{
    return complain(LIB_FAILED, "%s (%s)", ffpa_last_error(), ffpa_status_name(status));
}

const char *last_complaint(void) { return complaint; }

/* ---- terminal ---- */

static const char *style(const char *code)
{
    const char *none = getenv("NO_COLOR"), *term = getenv("TERM");
    bool colour =
        isatty(STDOUT_FILENO) && !(none && *none) && term && strcmp(term, "dumb") != 0;
    return colour ? code : "";
}

const char *style_good(void) { return style("\033[32m"); }
const char *style_bad(void) { return style("\033[1;31m"); }
const char *style_head(void) { return style("\033[1m"); }
const char *style_off(void) { return style("\033[0m"); }

static struct progress {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t stop;
    bool running, stopping;
    char what[600];
} progress = {.lock = PTHREAD_MUTEX_INITIALIZER, .stop = PTHREAD_COND_INITIALIZER};

static void *progress_show(void *unused)
{
    (void)unused;
    struct timespec until;
    bool shown = false;
    double start = seconds_now();
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 2;
    pthread_mutex_lock(&progress.lock);
    while (!progress.stopping) {
        if (pthread_cond_timedwait(&progress.stop, &progress.lock, &until) == ETIMEDOUT) {
            fprintf(stderr, "\r%s ... %.0f s", progress.what, seconds_now() - start);
            fflush(stderr);
            shown = true;
            until.tv_sec++;
        }
    }
    pthread_mutex_unlock(&progress.lock);
    if (shown) fprintf(stderr, "\r\033[K");
    return NULL;
}

void progress_begin(const char *what)
{
    if (!isatty(STDERR_FILENO) || progress.running) return;
    snprintf(progress.what, sizeof progress.what, "%s", what);
    progress.stopping = false;
    progress.running = pthread_create(&progress.thread, NULL, progress_show, NULL) == 0;
}

void progress_end(void)
{
    if (!progress.running) return;
    pthread_mutex_lock(&progress.lock);
    progress.stopping = true;
    pthread_cond_signal(&progress.stop);
    pthread_mutex_unlock(&progress.lock);
    pthread_join(progress.thread, NULL);
    progress.running = false;
}

double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

const char *text_seconds(char text[32], double seconds)
{
    if (seconds < 1e-3)
        snprintf(text, 32, "%.1f us", seconds * 1e6);
    else if (seconds < 1)
        snprintf(text, 32, "%.2f ms", seconds * 1e3);
    else
        snprintf(text, 32, "%.2f s", seconds);
    return text;
}

static const char *scaled(char text[32], double value, double step, const char *const units[5])
{
    int i = 0;
    while (i < 4 && value >= step) {
        value /= step;
        i++;
    }
    snprintf(text, 32, i ? "%.2f %s" : "%.0f %s", value, units[i]);
    return text;
}

const char *text_bytes(char text[32], double bytes)
{
    static const char *const UNITS[5] = {"B", "KiB", "MiB", "GiB", "TiB"};
    return scaled(text, bytes, 1024, UNITS);
}

const char *text_flop(char text[32], double flop)
{
    static const char *const UNITS[5] = {"FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP"};
    return scaled(text, flop, 1000, UNITS);
}

/* ---- common options ---- */

bool parse_integer(const char *text, int64_t low, int64_t high, int64_t *value)
{
    char *end;
    errno = 0;
    long long n = strtoll(text, &end, 10);
    *value = n;
    return end != text && *end == 0 && errno == 0 && n >= low && n <= high;
}

bool parse_real(const char *text, double low, double high, double *value)
{
    char *end;
    *value = strtod(text, &end);
    return end != text && *end == 0 && *value >= low && *value <= high;
}

common_options common_defaults(int argc, char **argv)
{
    common_options common = {0};
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
        common.json = common.json || strcmp(argv[i], "--json") == 0;
    return common;
}

/* The option that getopt_long has just refused, as it was written. */
static const char *refused_option(char *const *argv)
{
    static char letter[3] = "-?";
    letter[1] = (char)optopt;
    return optopt > 0 && optopt < OPT_JSON ? letter : argv[optind - 1];
}

int next_option(int argc, char **argv, const char *letters, const struct option *table)
{
    static bool seen[OPT_END];
    int at = -1;
    opterr = 0;
    int option = getopt_long(argc, argv, letters, table, &at);
    if (option == ':' || option == '?') {
        complain(BAD_USAGE, "%s '%s'; try `ffpa help %s`",
                 option == ':' ? "a value must follow option" : "unknown option or wrong use:",
                 refused_option(argv), argv[0]);
        return '?';
    }
    if (option < 0 || !optarg || option >= OPT_REPEATED) return option;
    if (seen[option]) {
        complain(BAD_USAGE, "%s is given twice, the second time as '%s'",
                 at >= 0 ? table[at].name : (char[]){'-', (char)option, 0}, optarg);
        return '?';
    }
    seen[option] = true;
    return option;
}

bool common_option(common_options *common, int option, int *code)
{
    int64_t threads;
    *code = DONE;
    switch (option) {
    case OPT_JSON: common->json = true; return true;
    case OPT_SLOW: common->allow_slow = true; return true;
    case OPT_BACKEND: common->backend = optarg; return true;
    case OPT_ISA: common->isa = optarg; return true;
    case OPT_THREADS:
        if (!parse_integer(optarg, 1, INT32_MAX, &threads)) /* the library knows the most */
            *code = complain(BAD_USAGE, "--threads=%s: a whole number from 1", optarg);
        common->threads = (int)threads;
        return true;
    case '?': *code = BAD_USAGE; return true; /* next_option has complained */
    default: return false;
    }
}

int common_context(const common_options *common, const char *backend, ffpa_context **context)
{
    ffpa_context_options options = {.struct_size = sizeof options};
    options.backend = backend ? backend : common->backend;
    options.cpu_isa = common->isa;
    options.threads = common->threads;
    options.policy = common->allow_slow ? FFPA_ALLOW_SLOW : FFPA_STRICT;
    ffpa_status status = ffpa_context_create(&options, context);
    return status == FFPA_OK ? DONE : complain_library(status);
}
