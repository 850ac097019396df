/* cost.h - what a problem costs: floating-point operations and bytes. */
#ifndef FFPA_CORE_COST_H
#define FFPA_CORE_COST_H

#include "core/sequence.h"

/* Sums over all sequences, for one head: query rows, keys, and the pairs of them that causal and window
 * leave. In doubles: sizes may be anything. */
typedef struct amounts {
    double queries, keys, pairs;
} amounts;

/* By the problem alone: each sequence as long as it can be, unless the problem spells lengths out. */
amounts problem_amounts(const problem *p);

/* By the index arrays of a call that sequences_check has passed. */
amounts call_amounts(const problem *p, const call *c);

/* Operations over those pairs. */
double cost_flop(const problem *p, const amounts *n);

/* Each input tensor read once and each output tensor written once. Index arrays and appended rows are left
 * out: a few bytes beside the rest. */
double cost_bytes(const problem *p, const amounts *n);

#endif
