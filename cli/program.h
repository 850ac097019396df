/* program.h - what every command shares: exit codes, complaints, the terminal, common options. */
#ifndef FFPA_CLI_PROGRAM_H
#define FFPA_CLI_PROGRAM_H

#include "ffpa/ffpa.h"

#include <cjson/cJSON.h>
#include <getopt.h>
#include <stdbool.h>
#include <stdio.h>

/* Exit codes, part of the interface: `ffpa help` lists them. */
enum {
    DONE = 0,         /* did what was asked; every check passed */
    CHECK_FAILED = 1, /* a check or comparison failed */
    BAD_USAGE = 2,    /* options or problem string */
    BAD_FILE = 3,     /* a file could not be read, understood or written */
    LIB_FAILED = 4    /* the library refused or failed, or memory ran out */
};

typedef struct command {
    const char *name;
    int (*run)(int argc, char **argv); /* argv[0] is the command's name */
    const char *summary;
    const char *help;
} command;

extern const command COMMANDS[]; /* ends with a NULL name */

int cmd_run(int argc, char **argv);
int cmd_check(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_explain(int argc, char **argv);
int cmd_info(int argc, char **argv);
int cmd_prebuild(int argc, char **argv);
int cmd_doctor(int argc, char **argv);

/* ---- complaints ---- */

/* Print "ffpa: <sentence>" on stderr and return `code`. */
__attribute__((format(printf, 2, 3))) int complain(int code, const char *format, ...);

/* The same for a library call that failed: status, then ffpa_last_error(). */
int complain_library(ffpa_status status);

/* The last sentence complained; "" before the first. */
const char *last_complaint(void);

/* ---- terminal ---- */

/* Style on stdout, "" unless it is a terminal that wants colour (NO_COLOR, TERM=dumb). */
const char *style_good(void);
const char *style_bad(void);
const char *style_head(void);
const char *style_off(void);

/* Between these two a line on stderr, if that is a terminal, says what is going on and for how long,
 * once it takes more than two seconds. */
void progress_begin(const char *what);
void progress_end(void);

double seconds_now(void); /* monotonic */

/* "12.3 ms"; "1.5 MiB"; "35.2 GFLOP" */
const char *text_seconds(char text[32], double seconds);
const char *text_bytes(char text[32], double bytes);
const char *text_flop(char text[32], double flop);

/* ---- common options ---- */

typedef struct common_options {
    bool json;
    bool allow_slow;
    const char *backend; /* NULL = library's default */
    const char *isa;
    int threads; /* 0 = library's default */
} common_options;

enum { OPT_JSON = 256, OPT_SLOW, OPT_BACKEND, OPT_ISA, OPT_THREADS, OPT_HELP, OPT_OWN };
enum {
    OPT_REPEATED = 400,
    OPT_END = 410
}; /* of a command's own that may be given more than once */

/* Rows for a command's table of long options; its own start at OPT_OWN. The first two are of every
 * command, the rest of those that run or plan a problem in a context. */
#define OUTPUT_OPTIONS \
    {"json", no_argument, NULL, OPT_JSON}, { "help", no_argument, NULL, OPT_HELP }
#define COMMON_OPTIONS                                           \
    OUTPUT_OPTIONS, {"allow-slow", no_argument, NULL, OPT_SLOW}, \
        {"backend", required_argument, NULL, OPT_BACKEND},       \
        {"isa", required_argument, NULL, OPT_ISA},               \
    {                                                            \
        "threads", required_argument, NULL, OPT_THREADS          \
    }

/* Defaults. Whether JSON is wanted is known before any option can be wrong, so that the complaint comes
 * as JSON too. */
common_options common_defaults(int argc, char **argv);

/* getopt_long with our own complaints, one of them about an option with two values: '?' after one, -1 at
 * the end. `letters` starts with ':'. */
int next_option(int argc, char **argv, const char *letters, const struct option *table);

/* Handles the options above, and '?'. False when it is none of them. `*code` is DONE, or BAD_USAGE
 * after a complaint. */
bool common_option(common_options *common, int option, int *code);

/* Context by the common options; `backend` wins over theirs unless NULL. DONE or LIB_FAILED. */
int common_context(const common_options *common, const char *backend, ffpa_context **context);

/* Whole-string numbers. False when malformed or outside [low, high]. */
bool parse_integer(const char *text, int64_t low, int64_t high, int64_t *value);
bool parse_real(const char *text, double low, double high, double *value);

/* ---- problems on the command line ---- */

typedef struct problem_list {
    ffpa_problem *items;
    int count;
} problem_list;

/* Problems from the remaining arguments and, unless NULL, from `file`: one a line, '#' comments.
 * DONE, or a code after a complaint; none at all is BAD_USAGE. Free with problems_free. */
int problems_collect(problem_list *list, int argc, char **argv, const char *file);
void problems_free(problem_list *list);

/* Canonical text of a problem. */
typedef struct problem_text {
    char text[1024];
} problem_text;
problem_text problem_print(const ffpa_problem *problem);

/* ---- JSON ---- */

/* A document for `--json`: {"command": name, "version": ...}. */
cJSON *json_document(const char *name);

/* Print and free it. `code` becomes "exit", and the last complaint "error" when it is not DONE. */
void json_finish(cJSON *document, int code);

/* Number, with NaN and infinities as the strings "nan", "inf", "-inf": JSON has none. */
void json_number(cJSON *object, const char *name, double value);

#endif
