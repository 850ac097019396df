/* view.h - arithmetic on strided views: how far they reach, and whether two of them share memory. */
#ifndef FFPA_CORE_VIEW_H
#define FFPA_CORE_VIEW_H

#include "base/status.h"

#include <stdbool.h>

/* Byte range [low, high) that a view touches, relative to address 0; empty when it has no element. */
typedef struct byte_range {
    int64_t low, high;
} byte_range;

/* Reach of a view, with every overflow caught. `fn` and `name` open the sentence. */
ffpa_status view_range(const ffpa_tensor *t, const char *fn, const char *name,
                       byte_range *range);

int64_t view_count(const ffpa_tensor *t); /* elements; shapes are known to be valid */

/* Whether memory is shared. Exact for views whose strides nest, such as all slices and permutations of
 * arrays, and for nearly all others; "maybe" when finding out would take too long. */
typedef enum view_share { SHARE_NO, SHARE_YES, SHARE_MAYBE } view_share;

/* Do two elements of one view share an address? Written views must not. */
view_share view_folds(const ffpa_tensor *t);

/* Do two views share a byte? */
view_share views_share(const ffpa_tensor *a, const ffpa_tensor *b);

#endif
