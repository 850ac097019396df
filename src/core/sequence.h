/* sequence.h - where the rows of one sequence are: dense, packed, in a cache or in pages. Every CPU
 * path asks here and nowhere else. Only for index arrays in host memory. */
#ifndef FFPA_CORE_SEQUENCE_H
#define FFPA_CORE_SEQUENCE_H

#include "base/alloc.h"
#include "core/problem.h"

typedef struct sequence {
    int64_t nq, nk;    /* query rows and keys, appended ones included */
    int64_t q_batch;   /* batch index into q, o, lse, dout, dlse, dq: 0 when packed */
    int64_t q_row;     /* first row there */
    int64_t k_batch;   /* batch index into k, v, dk, dv; unused when paged */
    int64_t k_row;     /* first row there */
    int64_t new_keys;  /* appended rows: the last ones of nk */
    int64_t page_size; /* 0 = not paged */
    const void *pages; /* this sequence's row of the block table */
    int32_t index_dtype;
} sequence;

/* Number of sequences: B, or varlen's batch. */
int64_t sequence_count(const call *c);

/* Sequence `b` of a call that sequences_check has passed. */
sequence sequence_get(const call *c, int64_t b);

/* Check all offsets, lengths, cache entries and page numbers against the tensors, before anything
 * is written. Needs memory only to compare appended rows of shared blocks. */
ffpa_status sequences_check(const call *c, const allocator *a, const char *fn);

/* Write the k_new and v_new rows of every sequence into the cache. No-op without them. */
void sequences_append(const call *c);

/* Address of key (or value) row j of a sequence in head h of tensor k or v. */
const void *sequence_key(const sequence *s, const ffpa_tensor *t, int64_t h, int64_t j);

/* Address of query row i of a sequence in head h of q, o, lse, dout, dlse or dq. */
void *sequence_query(const sequence *s, const ffpa_tensor *t, int64_t h, int64_t i);

/* Index arrays of either width. */
int64_t index_at(const void *array, int32_t dtype, int64_t i);

#endif
