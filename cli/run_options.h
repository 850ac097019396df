/* run_options.h - the options of `ffpa run`. */
#ifndef FFPA_CLI_RUN_OPTIONS_H
#define FFPA_CLI_RUN_OPTIONS_H

#include "program.h"
#include "run_files.h"

typedef struct run_options {
    common_options common;
    const char *output, *expect, *expect_suffix;
    const char *names[ROLE_COUNT]; /* tensor names in a .safetensors */
    const char *extra[ROLE_COUNT]; /* files for single roles */
    view_options view;
    ffpa_forward_params forward; /* options only */
    double dropout, tolerance;   /* each negative without it; tolerance is then by dtype */
    int64_t seed;                /* likewise */
    bool lse, grad;
} run_options;

/* Defaults, then the command line. DONE, or BAD_USAGE after a complaint. */
int run_options_read(run_options *o, int argc, char **argv);

#endif
