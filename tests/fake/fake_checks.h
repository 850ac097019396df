/* fake_checks.h - what the tests of every family of GPU kernels ask of a call on the fake driver. */
#ifndef FFPA_TESTS_FAKE_CHECKS_H
#define FFPA_TESTS_FAKE_CHECKS_H

#include "fake/device_call.h"
#include "fake/fake_cuda.h"

#include "common/args.h"
#include "cuda/families.h"

/* The call with the workspace that it asks for. */
ffpa_status forward(ffpa_context *ctx, device_call *c);
ffpa_status backward(ffpa_context *ctx, device_call *c);

/* Does the launch's kernel have a name that begins so? */
bool is(const fake_launch *l, const char *kind);

/* The address that a tensor map of the fake driver holds. */
void *mapped(const k_map *map);

/* The family that an H200 takes for the problem (`only` as in family_for), and in `why` what the others say. */
const family *family_on_hopper(const ffpa_problem *ask, const char *only, char *why,
                               size_t why_bytes);

/* On an H200 the problem, too large for any memory, is planned at once by `only`, or refused with this reason. */
void check_planned(const char *text, const char *only, const char *reason);

/* A warm call of the problem takes at most 5 us of processor time (no rule under sanitizers). */
void check_host_time(ffpa_context *ctx, const char *text);

/* Each driver call of a warm backward call fails in turn: it says so, puts the context back and works again. */
void check_every_call_may_fail(ffpa_context *ctx, const char *text, size_t workspace_limit);

/* Which lines of which heads the chunks of a run cover, and the sums of which key heads they open and close. */
typedef struct chunk_book {
    int lines; /* of a head */
    int covered[64 * 64], opened[64], closed[64];
} chunk_book;
void book_lines(chunk_book *book, const k_chunk *k);
void book_sums(chunk_book *book, const k_chunk *k, int group, int first, int last);

/* Each line of each head once; each key head's sums opened first and closed last. */
void book_check(const chunk_book *book, const device_call *c);

#endif
