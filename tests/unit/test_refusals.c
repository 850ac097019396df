/* test_refusals.c - every rule about a call has a case here that breaks it, and only it: the status,
 * a sentence that names the function and the argument, and not one byte written. */
#include "support/sample_call.h"
#include "support/unit.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

typedef struct refusal {
    const char *name;
    ffpa_status status;
    const char *words;
    void (*spoil)(sample_call *s);
} refusal;

/* A workspace; calls use its beginning. */
static _Alignas(64) char space[1 << 20];

#define SPOIL(name, status, words, ...) \
    static void name(sample_call *s) { __VA_ARGS__; }
#define ROW(name, status, words, ...) {#name, FFPA_E_##status, words, name},

// clang-format off
#define FORWARD_REFUSALS(X)                                                                          \
    X(q_unknown_dtype,    INVALID, "q.dtype=99", s->f.q.dtype = 99)                                  \
    X(q_zero_dtype,       INVALID, "q.dtype=0", s->f.q.dtype = 0)                                    \
    X(q_integer,          INVALID, "q.dtype", s->f.q.dtype = s->f.k.dtype = s->f.v.dtype = s->f.o.dtype = FFPA_I32) \
    X(q_bool,             INVALID, "q.dtype=5 (bool) is none of", s->f.q.dtype = FFPA_BOOL)          \
    X(q_quantised,        UNSUPPORTED, "e4m3", s->f.q.dtype = s->f.k.dtype = s->f.v.dtype = s->f.o.dtype = FFPA_E4M3) \
    X(q_negative_size,    INVALID, "q.shape[2]=-1 is negative", s->f.q.shape[2] = s->f.o.shape[2] = s->f.lse.shape[2] = -1) \
    X(d_over_1024,        INVALID, "D=1025", s->f.q.shape[3] = s->f.k.shape[3] = 1025)               \
    X(dv_over_1024,       INVALID, "Dv=1025", s->f.v.shape[3] = s->f.o.shape[3] = 1025)              \
    X(heads_no_divisor,   INVALID, "k.shape[1]) does not divide", s->f.k.shape[1] = s->f.v.shape[1] = 3) \
    X(no_key_heads,       INVALID, "k.shape[1]) does not divide", s->f.k.shape[1] = s->f.v.shape[1] = 0) \
    X(k_batch,            INVALID, "k.shape[0]=3, expected 2", s->f.k.shape[0] = 3)                  \
    X(k_columns,          INVALID, "k.shape[3]=7, expected 8", s->f.k.shape[3] = 7)                  \
    X(k_dtype,            INVALID, "k.dtype=bf16, expected f32", s->f.k.dtype = FFPA_BF16)           \
    X(k_device,           INVALID, "k.device=1", s->f.k.device = FFPA_CUDA(0))                       \
    X(v_batch,            INVALID, "v.shape[0]", s->f.v.shape[0] = 1)                                \
    X(v_heads,            INVALID, "v.shape[1]", s->f.v.shape[1] = 1)                                \
    X(v_rows,             INVALID, "v.shape[2]", s->f.v.shape[2] = 4)                                \
    X(k_unknown_dtype,    INVALID, "k.dtype=99", s->f.k.dtype = 99)                                  \
    X(v_dtype,            INVALID, "v.dtype", s->f.v.dtype = FFPA_F16)                               \
    X(v_device,           INVALID, "v.device", s->f.v.device = FFPA_CUDA(1))                         \
    X(o_batch,            INVALID, "o.shape[0]", s->f.o.shape[0] = 1)                                \
    X(o_heads,            INVALID, "o.shape[1]", s->f.o.shape[1] = 2)                                \
    X(o_rows,             INVALID, "o.shape[2]", s->f.o.shape[2] = 5)                                \
    X(o_columns,          INVALID, "o.shape[3]=8, expected 6", s->f.o.shape[3] = 8)                  \
    X(o_dtype,            INVALID, "o.dtype=bool", s->f.o.dtype = FFPA_BOOL)                         \
    X(o_device,           INVALID, "o.device", s->f.o.device = FFPA_CUDA(0))                         \
    X(o_absent,           INVALID, "o.", memset(&s->f.o, 0, sizeof s->f.o))                          \
    X(lse_rows,           INVALID, "lse.shape[2]", s->f.lse.shape[2] = 4)                            \
    X(lse_columns,        INVALID, "lse.shape[3]=3, expected 1", s->f.lse.shape[3] = 3)              \
    X(lse_dtype,          INVALID, "lse.dtype=bf16", s->f.lse.dtype = FFPA_BF16)                     \
    X(lse_device,         INVALID, "lse.device", s->f.lse.device = FFPA_CUDA(0))                     \
    X(no_such_gpu,        NO_DEVICE, "",                                                             \
      s->f.q.device = s->f.k.device = s->f.v.device = s->f.o.device = s->f.lse.device = FFPA_CUDA(999)) \
    X(no_such_device,     INVALID, "q.device=-3",                                                    \
      s->f.q.device = s->f.k.device = s->f.v.device = s->f.o.device = s->f.lse.device = -3)          \
    X(causal_unknown,     INVALID, "causal=3", s->f.causal = 3)                                      \
    X(causal_negative,    INVALID, "causal=-1", s->f.causal = -1)                                    \
    X(softcap_negative,   INVALID, "softcap=-1", s->f.softcap = -1)                                  \
    X(softcap_nan,        INVALID, "softcap", s->f.softcap = NAN)                                    \
    X(softcap_inf,        INVALID, "softcap", s->f.softcap = INFINITY)                               \
    X(scale_nan,          INVALID, "scale", s->f.flags = FFPA_SCALE; s->f.scale = NAN)               \
    X(scale_inf,          INVALID, "scale", s->f.flags = FFPA_SCALE; s->f.scale = INFINITY)          \
    X(flag_unknown,       NEWER, "flags=0x80", s->f.flags = 0x80)                                    \
    X(quant_given,        UNSUPPORTED, "quant", s->f.quant = &s->quant)                              \
    X(dropout_negative,   INVALID, "dropout.p=-0.5", sample_attach_dropout(s); s->dropout.p = -0.5f) \
    X(dropout_above_1,    INVALID, "dropout.p=1.5", sample_attach_dropout(s); s->dropout.p = 1.5f)   \
    X(dropout_reserved,   NEWER, "dropout.reserved=77", sample_attach_dropout(s); s->dropout.reserved = 77) \
    X(varlen_reserved,    NEWER, "varlen.reserved=1", sample_attach_varlen(s); s->varlen.reserved = 1) \
    X(cache_reserved,     NEWER, "kv_cache.reserved=-1", sample_attach_cache(s); s->cache.reserved = -1) \
    X(space_limited,      WORKSPACE, "workspace_limit_bytes=1", s->f.workspace_limit_bytes = 1)      \
    X(dropout_nan,        INVALID, "dropout.p", sample_attach_dropout(s); s->dropout.p = NAN)        \
    X(mask_batch,         INVALID, "mask.shape[0]=3 must be 1 or 2", sample_attach_mask(s); s->f.mask.shape[0] = 3) \
    X(mask_heads,         INVALID, "mask.shape[1]", sample_attach_mask(s); s->f.mask.shape[1] = 2)   \
    X(mask_rows,          INVALID, "mask.shape[2]", sample_attach_mask(s); s->f.mask.shape[2] = 2)   \
    X(mask_keys,          INVALID, "mask.shape[3]", sample_attach_mask(s); s->f.mask.shape[3] = 4)   \
    X(mask_no_keys,       INVALID, "mask.shape[3]=0", sample_attach_mask(s); s->f.mask.shape[3] = 0) \
    X(mask_dtype_f64,     INVALID, "mask.dtype=f64", sample_attach_mask(s); s->f.mask.dtype = FFPA_F64) \
    X(mask_dtype_i32,     INVALID, "mask.dtype=i32", sample_attach_mask(s); s->f.mask.dtype = FFPA_I32) \
    X(mask_unknown_dtype, INVALID, "mask.dtype=-3", sample_attach_mask(s); s->f.mask.dtype = -3)     \
    X(mask_dtype_zero,    INVALID, "mask.dtype=0", sample_attach_mask(s); s->f.mask.dtype = 0)       \
    X(mask_device,        INVALID, "mask.device", sample_attach_mask(s); s->f.mask.device = FFPA_CUDA(0)) \
    X(mask_data,          INVALID, "mask.data is NULL", sample_attach_mask(s); s->f.mask.data = NULL) \
    X(mask_in_sequences,  UNSUPPORTED, "mask", sample_attach_mask(s); sample_attach_varlen(s))       \
    X(alibi_heads,        INVALID, "alibi.shape[1]=1, expected 4", sample_attach_alibi(s); s->f.alibi.shape[1] = 1) \
    X(alibi_batch,        INVALID, "alibi.shape[0]", sample_attach_alibi(s); s->f.alibi.shape[0] = 3) \
    X(alibi_rows,         INVALID, "alibi.shape[2]", sample_attach_alibi(s); s->f.alibi.shape[2] = 3) \
    X(alibi_dtype,        INVALID, "alibi.dtype", sample_attach_alibi(s); s->f.alibi.dtype = FFPA_F16) \
    X(alibi_device,       INVALID, "alibi.device", sample_attach_alibi(s); s->f.alibi.device = FFPA_CUDA(0)) \
    X(sink_batch,         INVALID, "sink.shape[0]", sample_attach_sink(s); s->f.sink.shape[0] = 2)   \
    X(sink_heads,         INVALID, "sink.shape[1]", sample_attach_sink(s); s->f.sink.shape[1] = 1)   \
    X(sink_dtype,         INVALID, "sink.dtype", sample_attach_sink(s); s->f.sink.dtype = FFPA_BF16) \
    X(rows_missing,       INVALID, "rows.rows is NULL", s->f.rows = &s->rows; s->rows.rows = NULL)   \
    X(rows_equal,         INVALID, "rows.rows[1]=0", s->f.rows = &s->rows; s->mem.rows[1] = 0)       \
    X(rows_negative,      INVALID, "rows.rows[0]=-1", s->f.rows = &s->rows; s->mem.rows[0] = -1)     \
    X(rows_count,         INVALID, "rows.count=-2", s->f.rows = &s->rows; s->rows.count = -2)        \
    X(varlen_nothing,     INVALID, "neither cu_q nor cu_k", sample_attach_varlen(s); s->varlen.cu_q = s->varlen.cu_k = NULL) \
    X(varlen_batch,       INVALID, "varlen.batch=-1", sample_attach_varlen(s); s->varlen.batch = -1) \
    X(varlen_index,       INVALID, "varlen.index_dtype=1", sample_attach_varlen(s); s->varlen.index_dtype = FFPA_F32) \
    X(varlen_hint,        INVALID, "varlen.max_q=-4", sample_attach_varlen(s); s->varlen.max_q = -4) \
    X(varlen_hint_k,      INVALID, "max_k=-4", sample_attach_varlen(s); s->varlen.max_k = -4)        \
    X(varlen_two_batches, INVALID, "q.shape[0]=2, expected 1", sample_attach_varlen(s); s->f.q.shape[0] = 2) \
    X(varlen_first,       INVALID, "varlen.cu_q[0]=-1", sample_attach_varlen(s); s->mem.cu_q[0] = -1) \
    X(varlen_decreasing,  INVALID, "varlen.cu_k[2]=1", sample_attach_varlen(s); s->mem.cu_k[2] = 1)  \
    X(varlen_past_end,    INVALID, "varlen.cu_k[2]=6", sample_attach_varlen(s); s->mem.cu_k[2] = 6)  \
    X(varlen_q_past_end,  INVALID, "varlen.cu_q[2]=4", sample_attach_varlen(s); s->mem.cu_q[2] = 4)  \
    X(varlen_and_cache,   INVALID, "cu_k and kv_cache", sample_attach_varlen(s); s->f.kv_cache = &s->cache) \
    X(pages_too_many,     INVALID, "more than 2^63 keys", sample_attach_pages(s); s->cache.table_width = INT64_MAX / 3) \
    X(cache_no_lengths,   INVALID, "kv_cache.lengths is NULL", sample_attach_cache(s); s->cache.lengths = NULL) \
    X(cache_index,        INVALID, "kv_cache.index_dtype", sample_attach_cache(s); s->cache.index_dtype = 0) \
    X(cache_two_tables,   INVALID, "block_table and batch_index", sample_attach_cache(s); s->cache.block_table = s->mem.pages; s->cache.table_width = 1) \
    X(cache_negative,     INVALID, "kv_cache.lengths[1]=-1", sample_attach_cache(s); s->mem.lengths[1] = -1) \
    X(cache_overfull,     INVALID, "kv_cache.lengths[0]=5 plus 1", sample_attach_cache(s); s->mem.lengths[0] = 5) \
    X(cache_entry,        INVALID, "kv_cache.batch_index[0]=2", sample_attach_cache(s); s->mem.batch_index[0] = 2) \
    X(cache_entry_below,  INVALID, "kv_cache.batch_index[1]=-1", sample_attach_cache(s); s->mem.batch_index[1] = -1) \
    X(cache_same_entry,   INVALID, "batch_index makes sequences 0 and 1",                            \
      sample_attach_cache(s); s->mem.batch_index[0] = 0; s->mem.lengths[0] = 2)                      \
    X(cache_new_rows,     INVALID, "kv_cache.v_new.shape[2]=2", sample_attach_cache(s); s->cache.v_new.shape[2] = 2) \
    X(cache_new_many,     INVALID, "shape[2]=6 new keys, the cache holds 5 of a sequence", \
      sample_attach_cache(s); s->cache.k_new.shape[2] = s->cache.v_new.shape[2] = 6) \
    X(cache_new_batch,    INVALID, "kv_cache.k_new.shape[0]=1", sample_attach_cache(s); s->cache.k_new.shape[0] = 1) \
    X(cache_new_heads,    INVALID, "kv_cache.k_new.shape[1]", sample_attach_cache(s); s->cache.k_new.shape[1] = 4) \
    X(cache_new_columns,  INVALID, "kv_cache.v_new.shape[3]", sample_attach_cache(s); s->cache.v_new.shape[3] = 8) \
    X(cache_new_dtype,    INVALID, "kv_cache.k_new.dtype", sample_attach_cache(s); s->cache.k_new.dtype = FFPA_F16) \
    X(cache_new_half,     INVALID, "kv_cache.v_new", sample_attach_cache(s); memset(&s->cache.v_new, 0, sizeof s->cache.v_new)) \
    X(cache_new_half_k,   INVALID, "kv_cache.k_new", sample_attach_cache(s); memset(&s->cache.k_new, 0, sizeof s->cache.k_new)) \
    X(pages_stride,       INVALID, "kv_cache.table_stride=1 is below", sample_attach_pages(s); s->cache.table_width = 2; s->cache.table_stride = 1) \
    X(pages_width,        INVALID, "table_width=-1", sample_attach_pages(s); s->cache.table_width = -1) \
    X(pages_number,       INVALID, "kv_cache.block_table[1][0]=2", sample_attach_pages(s); s->mem.pages[1] = 2) \
    X(pages_below,        INVALID, "kv_cache.block_table[0][0]=-1", sample_attach_pages(s); s->mem.pages[0] = -1) \
    X(pages_overfull,     INVALID, "kv_cache.lengths[0]=5 plus 1", sample_attach_pages(s); s->mem.lengths[0] = 5) \
    X(pages_of_no_rows,   INVALID, "k.shape[2]=0", sample_attach_pages(s); s->f.k.shape[2] = s->f.v.shape[2] = 0) \
    X(q_data,             INVALID, "q.data is NULL", s->f.q.data = NULL)                             \
    X(k_data,             INVALID, "k.data is NULL", s->f.k.data = NULL)                             \
    X(v_data,             INVALID, "v.data is NULL", s->f.v.data = NULL)                             \
    X(o_data,             INVALID, "o.data is NULL", s->f.o.data = NULL)                             \
    X(lse_data,           INVALID, "lse.data is NULL", s->f.lse.data = NULL)                         \
    X(k_misaligned,       INVALID, "is not aligned to its 4-byte", s->f.k.data = (char *)s->f.k.data + 1) \
    X(o_broadcast,        INVALID, "o.stride", s->f.o.stride[0] = 0)                                 \
    X(o_folds,            INVALID, "o.stride", s->f.o.stride[2] = SDV - 1)                           \
    X(q_stride_overflow,  INVALID, "q.shape", s->f.q.stride[0] = INT64_MAX / 2)                      \
    X(q_size_overflow,    INVALID, "q.shape", s->f.q.shape[0] = s->f.k.shape[0] = s->f.v.shape[0] = s->f.o.shape[0] = s->f.lse.shape[0] = INT64_MAX / 8) \
    X(rows_without_end,   INVALID, "more than 2^40 rows",                                              \
      s->f.q.shape[2] = s->f.o.shape[2] = s->f.lse.shape[2] = (int64_t)1 << 39)                      \
    X(o_over_q,           INVALID, "output o overlaps q", s->f.o.data = s->mem.q)                    \
    X(o_over_v,           INVALID, "output o overlaps v", s->f.o.data = s->mem.v + 8)                \
    X(o_over_mask,        INVALID, "output o overlaps mask", sample_attach_mask(s); s->f.o.data = s->mem.mask) \
    X(lse_over_o,         INVALID, "overlaps", s->f.lse.data = s->mem.o + 5)                         \
    X(lse_over_k,         INVALID, "output lse overlaps k", s->f.lse.data = s->mem.k)                \
    X(k_over_k_new,       INVALID, "overlaps kv_cache.k_new", sample_attach_cache(s); s->cache.k_new.data = s->mem.k) \
    X(workspace_over_k,   INVALID, "the workspace overlaps k", s->f.workspace = space; s->f.workspace_bytes = sizeof space; s->f.k.data = space + 64) \
    X(o_in_workspace,     INVALID, "output o overlaps workspace", s->f.workspace = space; s->f.workspace_bytes = sizeof space; s->f.o.data = space) \
    X(o_over_cu_q,        INVALID, "output o overlaps varlen.cu_q", sample_attach_varlen(s); s->f.o.data = s->mem.cu_q) \
    X(lse_over_cu_k,      INVALID, "output lse overlaps varlen.cu_k", sample_attach_varlen(s); s->f.lse.data = s->mem.cu_k) \
    X(o_over_lengths,     INVALID, "output o overlaps kv_cache.lengths", sample_attach_cache(s); s->f.o.data = s->mem.lengths) \
    X(k_over_entries,     INVALID, "output k overlaps kv_cache.batch_index", sample_attach_cache(s); s->cache.batch_index = (int32_t *)s->mem.k) \
    X(o_over_pages,       INVALID, "output o overlaps kv_cache.block_table", sample_attach_pages(s); s->f.o.data = s->mem.pages) \
    X(o_over_rows,        INVALID, "output o overlaps rows.rows", s->f.rows = &s->rows; s->f.o.data = s->mem.rows) \
    X(lse_over_seed,      INVALID, "output lse overlaps dropout.seed_ptr",                           \
      sample_attach_dropout(s); s->dropout.seed_ptr = (uint64_t *)s->mem.lse)                        \
    X(o_over_offset,      INVALID, "output o overlaps dropout.offset_ptr",                           \
      sample_attach_dropout(s); s->dropout.offset_ptr = (uint64_t *)s->mem.o)                        \
    X(cu_q_misaligned,    INVALID, "is not aligned to its 4-byte", sample_attach_varlen(s); s->varlen.cu_q = (char *)s->mem.cu_q + 1) \
    X(workspace_size,     INVALID, "params.struct_size=751", s->f.struct_size = 751)                 \
    X(params_unsized,     INVALID, "params.struct_size=0", s->f.struct_size = 0)                     \
    X(params_absurd,      INVALID, "params.struct_size=", s->f.struct_size = (size_t)1 << 40)        \
    X(dropout_unsized,    INVALID, "dropout.struct_size=0", sample_attach_dropout(s); s->dropout.struct_size = 0) \
    X(varlen_unsized,     INVALID, "varlen.struct_size=8", sample_attach_varlen(s); s->varlen.struct_size = 8) \
    X(cache_unsized,      INVALID, "kv_cache.struct_size", sample_attach_cache(s); s->cache.struct_size = 215) \
    X(quant_unsized,      INVALID, "quant.struct_size", s->f.quant = &s->quant; s->quant.struct_size = 0) \
    X(rows_unsized,       INVALID, "rows.struct_size", s->f.rows = &s->rows; s->rows.struct_size = 0)

#define BACKWARD_REFUSALS(X)                                                                         \
    X(no_forward,         INVALID, "forward is NULL", s->g.forward = NULL)                           \
    X(forward_unsized,    INVALID, "struct_size=0", s->f.struct_size = 0)                            \
    X(backward_unsized,   INVALID, "params.struct_size=1", s->g.struct_size = 1)                     \
    X(backward_bad_shape, INVALID, "k.shape[3]", s->f.k.shape[3] = 4)                                \
    X(lse_absent,         INVALID, "lse is absent", memset(&s->f.lse, 0, sizeof s->f.lse))           \
    X(cache_backward,     INVALID, "kv_cache", sample_attach_cache(s))                               \
    X(lse_of_no_columns,  INVALID, "forward.lse is absent", memset(&s->f.lse, 0, sizeof s->f.lse); s->f.q.shape[3] = s->f.k.shape[3] = 0) \
    X(dout_absent,        INVALID, "dout.", memset(&s->g.dout, 0, sizeof s->g.dout))                 \
    X(dout_shape,         INVALID, "dout.shape[3]=8, expected 6", s->g.dout.shape[3] = 8)            \
    X(dout_dtype,         INVALID, "dout.dtype=f16", s->g.dout.dtype = FFPA_F16)                     \
    X(dout_device,        INVALID, "dout.device", s->g.dout.device = FFPA_CUDA(0))                   \
    X(dout_data,          INVALID, "dout.data is NULL", s->g.dout.data = NULL)                       \
    X(dlse_shape,         INVALID, "dlse.shape[3]", s->g.dlse = s->g.dout)                           \
    X(dlse_dtype,         INVALID, "dlse.dtype", s->g.dlse = s->f.lse; s->g.dlse.data = s->mem.dlse; s->g.dlse.dtype = FFPA_BF16) \
    X(dq_shape,           INVALID, "dq.shape[2]", s->g.dq.shape[2] = 1)                              \
    X(dq_dtype,           INVALID, "dq.dtype", s->g.dq.dtype = FFPA_F16)                             \
    X(dq_folds,           INVALID, "dq.stride", s->g.dq.stride[1] = 0)                               \
    X(dk_heads,           INVALID, "dk.shape[1]=4, expected 2", s->g.dk.shape[1] = SHQ)              \
    X(dk_dtype,           INVALID, "dk.dtype", s->g.dk.dtype = FFPA_I64)                             \
    X(dv_shape,           INVALID, "dv.shape[3]=8, expected 6", s->g.dv.shape[3] = SD)               \
    X(dv_data,            INVALID, "dv.data is NULL", s->g.dv.data = NULL)                           \
    X(dmask_no_mask,      INVALID, "dmask is asked for", sample_attach_mask(s); memset(&s->f.mask, 0, sizeof s->f.mask)) \
    X(dmask_of_bool,      INVALID, "mask is bool", sample_attach_mask(s); s->f.mask.dtype = FFPA_BOOL) \
    X(dmask_shape,        INVALID, "dmask.shape[0]=1, expected 2", sample_attach_mask(s); s->g.dmask.shape[0] = 1) \
    X(dmask_dtype,        INVALID, "dmask.dtype", sample_attach_mask(s); s->g.dmask.dtype = FFPA_F16) \
    X(dsink_no_sink,      INVALID, "dsink is asked for", sample_attach_sink(s); memset(&s->f.sink, 0, sizeof s->f.sink)) \
    X(dsink_shape,        INVALID, "dsink.shape[1]", sample_attach_sink(s); s->g.dsink.shape[1] = 1) \
    X(dsink_dtype,        INVALID, "dsink.dtype", sample_attach_sink(s); s->g.dsink.dtype = FFPA_F64) \
    X(dq_over_q,          INVALID, "output dq overlaps q", s->g.dq.data = s->mem.q)                  \
    X(dk_over_dv,         INVALID, "overlaps", s->g.dk.data = s->mem.dv)                             \
    X(dv_over_dout,       INVALID, "output dv overlaps dout", s->g.dv.data = s->mem.dout)            \
    X(dq_over_o,          INVALID, "output dq overlaps o", s->g.dq.data = s->mem.o)                  \
    X(dv_over_cu_k,       INVALID, "output dv overlaps varlen.cu_k", sample_attach_varlen(s); s->g.dv.data = s->mem.cu_k) \
    X(dk_in_workspace,    INVALID, "output dk overlaps workspace", s->g.workspace = space; s->g.workspace_bytes = sizeof space; s->g.dk.data = space)

#define MERGE_REFUSALS(X)                                                                            \
    X(merge_unsized,      INVALID, "struct_size=0", s->m.struct_size = 0)                            \
    X(merge_dtype,        INVALID, "o_a.dtype=i32", s->m.o_a.dtype = FFPA_I32)                       \
    X(merge_unknown,      INVALID, "lse_b.dtype=77", s->m.lse_b.dtype = 77)                          \
    X(merge_unknown_o,    INVALID, "o_a.dtype=0", s->m.o_a.dtype = 0)                                \
    X(merge_mixed,        INVALID, "o_b.dtype=f16, expected f32", s->m.o_b.dtype = FFPA_F16)         \
    X(merge_lse_dtype,    INVALID, "lse_a.dtype", s->m.lse_a.dtype = FFPA_BF16)                      \
    X(merge_shape,        INVALID, "o_b.shape[2]", s->m.o_b.shape[2] = 2)                            \
    X(merge_negative,     INVALID, "o_a.shape[2]=-1", s->m.o_a.shape[2] = s->m.o_b.shape[2] = s->m.o.shape[2] = s->m.lse_a.shape[2] = s->m.lse_b.shape[2] = s->m.lse.shape[2] = -1) \
    X(merge_lse_shape,    INVALID, "lse_b.shape[3]=6, expected 1", s->m.lse_b.shape[3] = SDV)        \
    X(merge_out_shape,    INVALID, "o.shape[1]", s->m.o.shape[1] = 2)                                \
    X(merge_out_lse,      INVALID, "lse.shape[2]", s->m.lse.shape[2] = 9)                            \
    X(merge_device,       INVALID, "lse_a.device=0, but o_a.device=1", s->m.o_a.device = FFPA_CUDA(0)) \
    X(merge_on_no_gpu,    NO_DEVICE, "", s->m.o_a.device = s->m.o_b.device = s->m.o.device =         \
      s->m.lse_a.device = s->m.lse_b.device = s->m.lse.device = FFPA_CUDA(999))                      \
    X(merge_data,         INVALID, "lse_a.data is NULL", s->m.lse_a.data = NULL)                     \
    X(merge_absent,       INVALID, "o.", memset(&s->m.o, 0, sizeof s->m.o))                          \
    X(merge_folds,        INVALID, "o.stride", s->m.o.stride[3] = 0)                                 \
    X(merge_shifted,      INVALID, "overlaps o_a", s->m.o.data = s->mem.q + 1)                       \
    X(merge_over_lse,     INVALID, "overlaps lse_b", s->m.o.data = s->mem.dlse + 4)
// clang-format on

FORWARD_REFUSALS(SPOIL)
BACKWARD_REFUSALS(SPOIL)
MERGE_REFUSALS(SPOIL)

static const refusal forward_refusals[] = {FORWARD_REFUSALS(ROW)};
static const refusal backward_refusals[] = {BACKWARD_REFUSALS(ROW)};
static const refusal merge_refusals[] = {MERGE_REFUSALS(ROW)};

typedef ffpa_status (*call_fn)(ffpa_context *ctx, sample_call *s);

static ffpa_status call_forward(ffpa_context *ctx, sample_call *s)
{
    return ffpa_forward(ctx, &s->f);
}
static ffpa_status call_backward(ffpa_context *ctx, sample_call *s)
{
    return ffpa_backward(ctx, &s->g);
}
static ffpa_status call_merge(ffpa_context *ctx, sample_call *s)
{
    return ffpa_merge(ctx, &s->m);
}

static ffpa_context *lenient(void)
{
    ffpa_context *ctx;
    const ffpa_context_options options = {
        .struct_size = sizeof options, .policy = FFPA_ALLOW_SLOW, .threads = 2};
    assert_ok(ffpa_context_create(&options, &ctx));
    return ctx;
}

/* The unspoilt sample must run, or a refusal would prove nothing. */
static void check_refusals(const refusal *table, size_t n, call_fn call, const char *fn)
{
    static sample_call s;
    static sample_memory before;
    ffpa_context *ctx = lenient();
    sample_init(&s);
    assert_ok(call(ctx, &s));
    int failures = 0; /* go on: the whole list of what is wrong is worth having */
    for (size_t i = 0; i < n; i++) {
        sample_init(&s);
        table[i].spoil(&s);
        before = s.mem;
        const ffpa_status got = call(ctx, &s);
        const char *said = got == FFPA_OK ? "" : ffpa_last_error();
        const bool right = got == table[i].status && strstr(said, table[i].words) &&
                           strncmp(said, fn, strlen(fn)) == 0;
        const bool untouched = memcmp(&before, &s.mem, sizeof before) == 0;
        if (!right)
            print_error("%s: %s \"%s\"; wanted %s and \"%s...%s...\"\n", table[i].name,
                        ffpa_status_name(got), said, ffpa_status_name(table[i].status), fn,
                        table[i].words);
        if (!untouched) print_error("%s: memory was written\n", table[i].name);
        failures += !right || !untouched;
    }
    assert_int_equal(failures, 0);
    sample_init(&s);
    assert_ok(call(ctx, &s)); /* and none of it left a mark */
    ffpa_context_destroy(ctx);
}

static void forward_refuses(void **state)
{
    (void)state;
    check_refusals(forward_refusals, COUNT(forward_refusals), call_forward, "ffpa_forward: ");
}

static void backward_refuses(void **state)
{
    (void)state;
    check_refusals(backward_refusals, COUNT(backward_refusals), call_backward,
                   "ffpa_backward: ");
}

static void merge_refuses(void **state)
{
    (void)state;
    check_refusals(merge_refusals, COUNT(merge_refusals), call_merge, "ffpa_merge: ");
}

/* What the cases above start from is legal, so each is refused for the detail that it spoils. */
static void every_attachment_is_legal(void **state)
{
    (void)state;
    static sample_call s;
    void (*const attach[])(sample_call *) = {
        sample_attach_mask,   sample_attach_alibi, sample_attach_sink, sample_attach_dropout,
        sample_attach_varlen, sample_attach_cache, sample_attach_pages};
    ffpa_context *ctx = lenient();
    for (size_t i = 0; i < COUNT(attach); i++) {
        sample_init(&s);
        attach[i](&s);
        assert_ok(ffpa_forward(ctx, &s.f));
        if (!s.f.kv_cache) assert_ok(ffpa_backward(ctx, &s.g));
    }
    sample_init(&s);
    s.f.rows = &s.rows;
    assert_ok(ffpa_forward(ctx, &s.f));
    ffpa_context_destroy(ctx);
}

/* Rows of an output may lie between each other's columns, as long as no two elements meet. */
static void an_interleaved_output_is_taken(void **state)
{
    (void)state;
    static sample_call s;
    static float o[SB * SHQ * 40];
    ffpa_context *ctx = lenient();
    sample_init(&s);
    assert_ok(ffpa_forward(ctx, &s.f));
    s.f.o.data = o;
    memcpy(s.f.o.stride, (int64_t[]){SHQ * 40, 40, 7, 3}, sizeof s.f.o.stride);
    assert_ok(ffpa_forward(ctx, &s.f));
    for (int bh = 0; bh < SB * SHQ; bh++)
        for (int i = 0; i < SNQ; i++)
            for (int j = 0; j < SDV; j++)
                assert_true(o[bh * 40 + 7 * i + 3 * j] == s.mem.o[(bh * SNQ + i) * SDV + j]);
    ffpa_context_destroy(ctx);
}

/* Asking before calling tells what the call would: rules about memory and index arrays included, but for
 * memory that is not there yet. */
static void supported_refuses_what_the_call_refuses(void **state)
{
    (void)state;
    static sample_call s;
    ffpa_report report = {.struct_size = sizeof report};
    ffpa_context *ctx = lenient();
    const struct {
        const refusal *table;
        size_t n;
        bool backward;
    } tables[] = {{forward_refusals, COUNT(forward_refusals), false},
                  {backward_refusals, COUNT(backward_refusals), true}};
    int failures = 0;
    for (size_t t = 0; t < COUNT(tables); t++)
        for (size_t i = 0; i < tables[t].n; i++) {
            const refusal *r = &tables[t].table[i];
            if (strstr(r->words, "data is NULL")) continue;
            sample_init(&s);
            r->spoil(&s);
            const ffpa_status got = tables[t].backward
                                        ? ffpa_backward_supported(ctx, &s.g, &report)
                                        : ffpa_forward_supported(ctx, &s.f, &report);
            if (got == r->status && strstr(ffpa_last_error(), r->words)) continue;
            print_error("%s: %s \"%s\"\n", r->name, ffpa_status_name(got),
                        got == FFPA_OK ? "" : ffpa_last_error());
            failures++;
        }
    assert_int_equal(failures, 0);
    ffpa_context_destroy(ctx);
}

static void null_arguments(void **state)
{
    (void)state;
    static sample_call s;
    sample_init(&s);
    ffpa_context *ctx = lenient();
    ffpa_report report = {.struct_size = sizeof report};
    ffpa_problem problem;
    ffpa_plan *plan;
    size_t bytes;
    assert_status(ffpa_forward(NULL, &s.f), FFPA_E_INVALID, "context");
    assert_status(ffpa_forward(ctx, NULL), FFPA_E_INVALID, "params is NULL");
    assert_status(ffpa_backward(NULL, &s.g), FFPA_E_INVALID, "context");
    assert_status(ffpa_backward(ctx, NULL), FFPA_E_INVALID, "params is NULL");
    assert_status(ffpa_merge(NULL, &s.m), FFPA_E_INVALID, "context");
    assert_status(ffpa_merge(ctx, NULL), FFPA_E_INVALID, "params is NULL");
    assert_status(ffpa_forward_workspace(ctx, &s.f, NULL), FFPA_E_INVALID, "bytes");
    assert_status(ffpa_forward_workspace(NULL, &s.f, &bytes), FFPA_E_INVALID, "context");
    assert_status(ffpa_backward_workspace(ctx, &s.g, NULL), FFPA_E_INVALID, "bytes");
    assert_status(ffpa_forward_supported(ctx, &s.f, NULL), FFPA_E_INVALID, "report");
    assert_status(ffpa_backward_supported(ctx, NULL, &report), FFPA_E_INVALID,
                  "params is NULL");
    assert_status(ffpa_explain(ctx, NULL, &report), FFPA_E_INVALID, "problem");
    assert_status(ffpa_plan_forward(ctx, &s.f, NULL), FFPA_E_INVALID, "plan");
    assert_status(ffpa_plan_backward(NULL, &s.g, &plan), FFPA_E_INVALID, "context");
    assert_status(ffpa_plan_run_forward(NULL, &s.f), FFPA_E_INVALID, "plan");
    assert_status(ffpa_plan_report(NULL, &report), FFPA_E_INVALID, "plan");
    assert_status(ffpa_problem_parse(NULL, &problem), FFPA_E_INVALID, "text");
    assert_status(ffpa_problem_parse("fwd", NULL), FFPA_E_INVALID, "problem");
    assert_status(ffpa_context_create(NULL, NULL), FFPA_E_INVALID, "context");
    assert_non_null(ffpa_context_describe(NULL));
    ffpa_plan_destroy(NULL);
    ffpa_context_destroy(NULL);
    ffpa_context_destroy(ctx);
}

static void a_plan_runs_only_its_problem(void **state)
{
    (void)state;
    static sample_call s;
    ffpa_plan *plan;
    ffpa_context *ctx = lenient();
    sample_init(&s);
    assert_ok(ffpa_plan_forward(ctx, &s.f, &plan));
    assert_ok(ffpa_plan_run_forward(plan, &s.f));
    assert_status(ffpa_plan_run_backward(plan, &s.g), FFPA_E_INVALID, "plan");
    s.f.causal = FFPA_TOP_LEFT;
    assert_status(ffpa_plan_run_forward(plan, &s.f), FFPA_E_INVALID, "plan");
    sample_init(&s);
    s.f.q.shape[2] = s.f.o.shape[2] = s.f.lse.shape[2] = 2;
    assert_status(ffpa_plan_run_forward(plan, &s.f), FFPA_E_INVALID, "plan");
    ffpa_plan_destroy(plan);
    ffpa_context_destroy(ctx);
}

static void context_options_are_checked(void **state)
{
    (void)state;
    static const struct {
        ffpa_context_options options;
        ffpa_status status;
        const char *words;
    } cases[] = {
        {{.struct_size = 3}, FFPA_E_INVALID, "struct_size=3"},
        {{.struct_size = sizeof cases[0].options, .backend = "gpu"}, FFPA_E_INVALID, "backend"},
        {{.struct_size = sizeof cases[0].options, .backend = "cuda/sm00"},
         FFPA_E_INVALID,
         "family"},
        {{.struct_size = sizeof cases[0].options, .cpu_isa = "mmx"}, FFPA_E_INVALID, "cpu_isa"},
        {{.struct_size = sizeof cases[0].options, .policy = 2}, FFPA_E_INVALID, "policy=2"},
        {{.struct_size = sizeof cases[0].options, .threads = -1}, FFPA_E_INVALID, "threads=-1"},
        {{.struct_size = sizeof cases[0].options,
          .alloc_user = NULL,
          .free = (ffpa_free_fn)abort},
         FFPA_E_INVALID,
         "alloc"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        ffpa_context *ctx = (ffpa_context *)&ctx;
        assert_status(ffpa_context_create(&cases[i].options, &ctx), cases[i].status,
                      cases[i].words);
        assert_null(ctx);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_attachment_is_legal),
        cmocka_unit_test(forward_refuses),
        cmocka_unit_test(backward_refuses),
        cmocka_unit_test(merge_refuses),
        cmocka_unit_test(an_interleaved_output_is_taken),
        cmocka_unit_test(supported_refuses_what_the_call_refuses),
        cmocka_unit_test(null_arguments),
        cmocka_unit_test(a_plan_runs_only_its_problem),
        cmocka_unit_test(context_options_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
