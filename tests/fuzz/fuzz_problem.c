/* fuzz_problem.c - problem strings and problem structs: whatever is accepted prints in a form that
 * reads back as the same problem, and can be explained quickly however large it is. */
#include "harness.h"

#include "ffpa/ffpa.h"

static ffpa_context *context(void)
{
    static ffpa_context *ctx;
    const ffpa_context_options options = {
        .struct_size = sizeof options, .policy = FFPA_ALLOW_SLOW, .threads = 2};
    if (!ctx) MUST(ffpa_context_create(&options, &ctx) == FFPA_OK);
    return ctx;
}

/* The text form knows one unlimited window. */
static void normalise(ffpa_problem *p)
{
    if (p->window_left < 0) p->window_left = -1;
    if (p->window_right < 0) p->window_right = -1;
}

static void check_text(const char *text)
{
    ffpa_problem p = {.struct_size = sizeof p}, again = p;
    char canonical[512];
    ffpa_report report = {.struct_size = sizeof report};
    if (ffpa_problem_parse(text, &p) != FFPA_OK) {
        MUST(ffpa_last_error()[0]);
        return;
    }
    MUST(ffpa_problem_format(&p, canonical, sizeof canonical) == FFPA_OK);
    MUST(ffpa_problem_parse(canonical, &again) == FFPA_OK);
    normalise(&p);
    if (p.softcap == 0) p.softcap = 0; /* minus zero prints as nothing */
    if (p.dropout == 0) p.dropout = 0;
    MUST(memcmp(&p, &again, sizeof p) == 0);
    if (ffpa_explain(context(), &p, &report) == FFPA_OK) {
        MUST(report.flop >= 0 && report.bytes >= 0);
        MUST(memchr(report.path, 0, sizeof report.path) && report.path[0]);
    } else {
        MUST(ffpa_last_error()[0]);
    }
    MUST(memchr(report.refusals, 0, sizeof report.refusals));
}

/* Structs come from programs and may hold anything; what prints must be readable. */
static void check_struct(taker *t)
{
    ffpa_problem p;
    char text[512], twice[512];
    ffpa_report report = {.struct_size = sizeof report};
    take(t, &p, sizeof p);
    p.struct_size = sizeof p;
    (void)ffpa_explain(context(), &p, &report);
    if (ffpa_problem_format(&p, text, sizeof text) != FFPA_OK) return;
    MUST(ffpa_problem_parse(text, &p) == FFPA_OK);
    MUST(ffpa_problem_format(&p, twice, sizeof twice) == FFPA_OK);
    MUST(strcmp(text, twice) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    taker t = {data, bytes};
    if (bytes > 4096) return 0;
    if (bytes && data[0] == 0) { /* no text begins with NUL: the rest is a struct */
        take_byte(&t);
        check_struct(&t);
        return 0;
    }
    char *text = malloc(bytes + 1); /* exactly as long as it is */
    MUST(text);
    take(&t, text, bytes);
    text[bytes] = 0;
    check_text(text);
    free(text);
    return 0;
}
