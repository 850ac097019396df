/* ffpa.h - exact attention for large head dimensions. The whole public API.
 *
 *   problem  what is asked for: sizes, dtypes, options (no pointers)
 *   plan     how it will run: kernel variant, tiles, workspace layout
 *   run      compute it; never waits for a device, never reads device data on the host
 *
 * Rules that hold for every function here
 *   - it returns ffpa_status; on failure ffpa_last_error() says which argument, its value, the rule
 *   - a zero field means "default" or "off": `= {0}` plus struct_size is a valid start; a field that
 *     belongs to a flag (scale, window_*) is not looked at without the flag; `reserved` must be 0
 *   - sizes and strides are in elements unless the name ends in _bytes
 *   - every struct that may grow starts with struct_size: programs compiled against an older or a
 *     newer header keep working, unless a newer one uses a field that this library lacks
 *   - nothing here aborts, exits or prints
 *
 * Letters: B batch, Hq query heads, Hk key heads, Nq query rows, Nk keys, D and Dv head dimensions.
 * Definitions of every option, of empty rows and of the accept rule: docs/numerics.md. */
/* Declarations and their comments stand in columns, by hand. */
/* clang-format off */
#ifndef FFPA_H
#define FFPA_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define FFPA_VERSION_MAJOR 0
#define FFPA_VERSION_MINOR 1
#define FFPA_VERSION_PATCH 0

#if defined(_WIN32)
#    define FFPA_API __declspec(dllimport)
#else
#    define FFPA_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- status ------------------------------------------------------------------------------ */

/* One row per status: name, pinned value, text. Values never change and are never reused. */
#define FFPA_STATUS_MAP(X)                                                                       \
    X(OK, 0, "success")                                                                          \
    X(E_INVALID, 1, "an argument is malformed")                                                  \
    X(E_UNSUPPORTED, 2, "well-formed, but no permitted backend implements it")                   \
    X(E_NO_DEVICE, 3, "no usable device or driver")                                              \
    X(E_OUT_OF_MEMORY, 4, "allocation failed")                                                   \
    X(E_WORKSPACE, 5, "workspace missing, misaligned or too small")                              \
    X(E_COMPILE, 6, "run-time compilation failed")                                               \
    X(E_DRIVER, 7, "the device driver reported an error")                                        \
    X(E_NEWER, 8, "caller uses a field this library version lacks")                              \
    X(E_INTERNAL, 9, "library bug; please report")

/* A status that nobody reads draws a warning where the compiler can (Clang, C++17, C23). */
#if defined(__clang__)
#    define FFPA_TO_BE_READ __attribute__((warn_unused_result))
#elif (defined(__cplusplus) && __cplusplus >= 201703L) || \
    (defined(__STDC_VERSION__) && __STDC_VERSION__ >= 202311L)
#    define FFPA_TO_BE_READ [[nodiscard]]
#else
#    define FFPA_TO_BE_READ
#endif

typedef enum FFPA_TO_BE_READ ffpa_status {
#define FFPA_X(name, value, text) FFPA_##name = value,
    FFPA_STATUS_MAP(FFPA_X)
#undef FFPA_X
} ffpa_status;

/* Static string such as "FFPA_E_UNSUPPORTED"; never NULL. Any thread. */
FFPA_API const char *ffpa_status_name(ffpa_status status);

/* Static one-line meaning of a status; never NULL. Any thread. */
FFPA_API const char *ffpa_status_text(ffpa_status status);

/* Sentence about the last failure on the calling thread, such as
 *   "ffpa_forward: Hk=3 (k.shape[1]) does not divide Hq=8 (q.shape[1])".
 * Valid until the next failing call on this thread; success leaves it untouched. Never NULL. */
FFPA_API const char *ffpa_last_error(void);

/* Path that the last successful run on the calling thread took, such as "cpu/avx2/forward" or
 * "reference/forward"; "" before the first. Never NULL. */
FFPA_API const char *ffpa_last_path(void);

/* Version of the loaded library, major << 16 | minor << 8 | patch. Any thread. */
FFPA_API uint32_t ffpa_version(void);

/* ---- tensors ----------------------------------------------------------------------------- */

typedef enum ffpa_dtype {
    FFPA_F32 = 1,
    FFPA_F16 = 2,
    FFPA_BF16 = 3,
    FFPA_F64 = 4,  /* reference backend only */
    FFPA_BOOL = 5, /* one byte, non-zero = attend; masks only */
    FFPA_I32 = 6,  /* lengths, offsets, page numbers */
    FFPA_I64 = 7,
    FFPA_E4M3 = 8, /* declared for quantised inputs; refused by this version */
    FFPA_E5M2 = 9
} ffpa_dtype;

/* Where a tensor's memory is. Zero is the host, so a zeroed tensor is a host tensor. */
#define FFPA_HOST    0
#define FFPA_CUDA(i) ((i) + 1)

/* A borrowed strided view; the library never owns, frees or touches anything outside it.
 * Logical order is always [batch, head, row, column]; physical order is free, because stride[]
 * says where things are. Any stride is legal, 0 and negative included, where the tensor is only
 * read; element alignment suffices. What is written may not meet itself or anything else of the call. The layout is frozen: this struct will not grow. */
typedef struct ffpa_tensor {
    void *data;        /* element [0,0,0,0]; NULL = absent where the field is optional */
    int64_t shape[4];  /* elements */
    int64_t stride[4]; /* elements */
    int32_t dtype;     /* ffpa_dtype */
    int32_t device;    /* FFPA_HOST or FFPA_CUDA(i) */
} ffpa_tensor;

/* Contiguous [b, h, n, d] view of host memory; set .device or .stride afterwards for others. */
static inline ffpa_tensor ffpa_tensor_4d(void *data, ffpa_dtype dtype, int64_t b, int64_t h,
                                         int64_t n, int64_t d)
{
    ffpa_tensor t = {data, {b, h, n, d}, {h * n * d, n * d, d, 1}, (int32_t)dtype, FFPA_HOST};
    return t;
}

/* ---- context ----------------------------------------------------------------------------- */

typedef struct ffpa_context ffpa_context;
typedef struct ffpa_plan ffpa_plan;

typedef enum ffpa_policy {
    FFPA_STRICT = 0,    /* what no fast path supports is an error that says why */
    FFPA_ALLOW_SLOW = 1 /* it may also run on the reference; ffpa_last_path() tells */
} ffpa_policy;

typedef enum ffpa_log_level { FFPA_LOG_ERROR = 1, FFPA_LOG_INFO = 2, FFPA_LOG_DEBUG = 3 } ffpa_log_level;

typedef void *(*ffpa_alloc_fn)(void *user, size_t bytes, size_t alignment); /* NULL = failed */
typedef void (*ffpa_free_fn)(void *user, void *memory);
typedef void (*ffpa_log_fn)(void *user, ffpa_log_level level, const char *line);

/* Zero everywhere (or a NULL pointer to this struct) = defaults. Strings are copied. Fields left
 * zero are taken from the environment where a variable is named: it is read once, at creation. */
typedef struct ffpa_context_options {
    size_t struct_size;
    const char *backend; /* "auto" (default: by where the tensors are), "cuda", "cpu", "reference",
                            "naive"; "cuda/FAMILY" = one family of GPU kernels alone, such as "cuda/sm80";
                            FFPA_BACKEND */
    const char *cpu_isa; /* "auto" (default; never "amx_bf16"), "amx_bf16", "avx512_bf16", "avx512", "avx2", "portable";
                            FFPA_CPU_ISA */
    int32_t policy;      /* ffpa_policy */
    int32_t threads;     /* CPU threads, at most 1024; 0 = one per processor this process may use; FFPA_THREADS */
    ffpa_alloc_fn alloc; /* host memory; both or neither */
    ffpa_free_fn free;
    void *alloc_user;
    ffpa_log_fn log; /* called from any thread that uses the context and from the context's own, from several
                        at once where kernels are compiled side by side */
    void *log_user;
    const char *cache_dir;  /* compiled GPU kernels; FFPA_CACHE_DIR, else $XDG_CACHE_HOME/ffpa, else ~/.cache/ffpa */
    const char *cache_mode; /* "on" (default), "read-only", "off"; FFPA_CACHE */
    const char *nvrtc_path; /* NVIDIA's run-time compiler: its library, its folder or a Python prefix;
                               default: look around; FFPA_NVRTC */
} ffpa_context_options;

/* Create a context: thread pool (started at first use), plan cache, policy.
 *
 * reads    options (NULL = all defaults), environment    writes  *context (NULL on failure)
 * errors   E_INVALID unknown backend, ISA or cache mode name, negative threads, half an allocator
 *          E_NO_DEVICE backend "cuda" was asked for, and there is no driver or GPU
 *          E_UNSUPPORTED this processor lacks the ISA asked for
 *          E_OUT_OF_MEMORY, E_NEWER
 * cost     microseconds; create one and share it
 * threads  a context may be used from any number of threads, and after fork in the child, whatever other
 *          threads were doing; there for host tensors alone, as no GPU context outlives a fork */
FFPA_API ffpa_status ffpa_context_create(const ffpa_context_options *options, ffpa_context **context);

/* Free a context. No call may be in flight on any thread and no plan of it may be used afterwards;
 * NULL is fine. */
FFPA_API void ffpa_context_destroy(ffpa_context *context);

/* ---- options that hang off the call -------------------------------------------------------- */

/* Dropout: keep(seed, offset, b, h, i, j) is a pure function (Philox 4x32-10, docs/numerics.md),
 * the same on every backend and in backward. The kept weights are divided by 1 - p. */
typedef struct ffpa_dropout {
    size_t struct_size;
    float p;           /* probability of dropping, 0..1; 1 drops everything */
    int32_t reserved;  /* 0 */
    uint64_t seed;     /* used unless seed_ptr is set */
    uint64_t offset;   /* used unless offset_ptr is set */
    const uint64_t *seed_ptr;   /* read when the call runs, in the memory of the tensors' device */
    const uint64_t *offset_ptr; /* likewise */
} ffpa_dropout;

/* Packed sequences. With cu_q, the rows of q, o, lse, dout, dlse, dq of all sequences lie one after
 * the other in one batch entry: q is [1, Hq, total, D]; sequence s owns rows cu_q[s]..cu_q[s+1]-1.
 * With cu_k likewise k, v, dk, dv. Without cu_q (or cu_k) that side is dense, [batch, H, N, D].
 * Rows before the first offset and past the last one are nobody's: never read, and in outputs (o, lse,
 * dq, dk, dv) they keep what they held.
 * Alignment of causal, window and ALiBi, and dropout's (b, i, j), count within each sequence. */
typedef struct ffpa_varlen {
    size_t struct_size;
    int64_t batch;       /* number of sequences */
    const void *cu_q;    /* batch + 1 non-decreasing row offsets starting at >= 0, or NULL */
    const void *cu_k;    /* batch + 1 row offsets, or NULL */
    int32_t index_dtype; /* FFPA_I32 or FFPA_I64 */
    int32_t reserved;    /* 0 */
    int64_t max_q;       /* hint: longest query sequence, 0 = unknown; never changes a result */
    int64_t max_k;       /* hint: longest key sequence, 0 = unknown; never changes a result */
} ffpa_varlen;

/* Keys and values in a cache, paged or not; forward only.
 *   not paged: k and v are [cache entries, Hk, capacity, D]; sequence b uses entry batch_index[b]
 *   paged:     k and v are [pages, Hk, page_size, D]; key j of sequence b is row j % page_size of
 *              page block_table[b * table_stride + j / page_size]
 * With new keys, lengths[b] counts the keys before the call: rows lengths[b].. get k_new and v_new
 * first, then attention runs over all of them (Nk = lengths[b] + Nnew). lengths is not changed. */
typedef struct ffpa_kv_cache {
    size_t struct_size;
    const void *lengths;     /* [B] valid keys of each sequence; required */
    const void *batch_index; /* [B] cache entry of each sequence, or NULL = 0..B-1; not with pages */
    const void *block_table; /* [B, table_width] page numbers, or NULL = not paged */
    int64_t table_stride;    /* elements between rows of block_table; 0 = table_width */
    int64_t table_width;     /* pages per sequence */
    int32_t index_dtype;     /* FFPA_I32 or FFPA_I64, of all three arrays */
    int32_t reserved;        /* 0 */
    ffpa_tensor k_new;       /* in  [B, Hk, Nnew, D ] appended before attention; optional */
    ffpa_tensor v_new;       /* in  [B, Hk, Nnew, Dv] with k_new, or absent with it */
} ffpa_kv_cache;

/* Quantised inputs. Declared so that programs can be written against it; this version refuses it
 * with E_UNSUPPORTED. A descale multiplies; an absent one is 1. */
typedef struct ffpa_quant {
    size_t struct_size;
    ffpa_tensor q_descale; /* f32 [1|B, 1|Hq, 1|blocks, 1] */
    ffpa_tensor k_descale; /* f32 [1|B, 1|Hk, 1|blocks, 1] */
    ffpa_tensor v_descale; /* f32 [1|B, 1|Hk, 1|blocks, 1] */
    int64_t block_rows;    /* rows that share a descale; 0 = one per head */
} ffpa_quant;

/* Compute only these query rows (of every sequence and head); the other rows of o and lse are not
 * written and, in backward, contribute nothing. For checks of large problems against sampled rows:
 * only the reference and naive backends take it. */
typedef struct ffpa_row_subset {
    size_t struct_size;
    int64_t count;
    const int64_t *rows; /* increasing, each >= 0; rows past a sequence's end are ignored */
} ffpa_row_subset;

/* ---- forward ----------------------------------------------------------------------------- */

typedef enum ffpa_causal {
    FFPA_CAUSAL_NONE = 0,
    FFPA_TOP_LEFT = 1,    /* query i sees keys j <= i */
    FFPA_BOTTOM_RIGHT = 2 /* query i sees keys j <= i + Nk - Nq */
} ffpa_causal;

#define FFPA_SCALE         0x1u /* scale is meaningful, 0 included; without it 1/sqrt(D) */
#define FFPA_WINDOW        0x2u /* window_left and window_right are meaningful */
#define FFPA_DETERMINISTIC 0x4u /* bitwise equal across runs; always so on this version's backends */

typedef struct ffpa_forward_params {
    size_t struct_size;   /* sizeof(ffpa_forward_params) as the caller compiled it */
    uint32_t flags;       /* FFPA_SCALE | FFPA_WINDOW | FFPA_DETERMINISTIC */
    int32_t causal;       /* ffpa_causal */
    float scale;          /* multiplies Q K^T, with FFPA_SCALE */
    float softcap;        /* c > 0: scores become c * tanh(score / c); 0 = off */
    int64_t window_left;  /* keys before the centre that a query sees; negative = unlimited */
    int64_t window_right; /* keys after it. Centre: i + Nk - Nq, or i with FFPA_TOP_LEFT */
    ffpa_tensor q;        /* in   [B, Hq, Nq, D ]  f32 | f16 | bf16 (f64: reference) */
    ffpa_tensor k;        /* in   [B, Hk, Nk, D ]  as q; Hk divides Hq; query head h uses h / (Hq/Hk) */
    ffpa_tensor v;        /* in   [B, Hk, Nk, Dv]  as q; may be a view of k */
    ffpa_tensor o;        /* out  [B, Hq, Nq, Dv]  as q, or f32 */
    ffpa_tensor lse;      /* out  [B, Hq, Nq, 1 ]  f32 (f64 with f64), natural log; optional */
    ffpa_tensor mask;     /* in   [1|B, 1|Hq, 1|Nq, 1|Nk]  bool, or added: f32 | f16 | bf16; optional */
    ffpa_tensor alibi;    /* in   [1|B, Hq, 1, 1]  f32 slopes: score -= slope * |i + Nk - Nq - j| */
    ffpa_tensor sink;     /* in   [1, Hq, 1, 1]    f32: one more logit per row, without a value */
    const ffpa_dropout *dropout;   /* NULL = off */
    const ffpa_varlen *varlen;     /* NULL = dense */
    const ffpa_kv_cache *kv_cache; /* NULL = k and v as they are */
    const ffpa_quant *quant;       /* NULL = off */
    const ffpa_row_subset *rows;   /* NULL = all */
    void *stream;           /* CUstream; ignored by the CPU backends */
    void *workspace;        /* 64-byte aligned, in the memory of the tensors' device. On the host,
                               NULL = the library allocates it for the call */
    size_t workspace_bytes; /* at least what ffpa_forward_workspace() says */
    size_t workspace_limit_bytes; /* most the plan may ask for; 0 = 1 GiB */
} ffpa_forward_params;

/* Zeroed parameters with struct_size set. */
static inline ffpa_forward_params ffpa_forward_params_init(void)
{
    ffpa_forward_params p;
    memset(&p, 0, sizeof p);
    p.struct_size = sizeof p;
    return p;
}

/* O = softmax(scale * Q K^T, capped, biased, masked) V, exact, with f32 accumulation.
 *
 * shapes   see ffpa_forward_params; D and Dv 1..1024 (D = 0 gives the mean of V); N any, 0 included
 * reads    q k v mask alibi sink, the arrays of the side structs
 * writes   o lse workspace; with kv_cache.k_new also the appended rows of k and v. Nothing else:
 *          no padding, no row past the last sequence. On failure nothing is written
 * errors   E_INVALID      shape, stride, dtype, overlap or an index out of range
 *          E_UNSUPPORTED  no permitted backend takes it; the sentence lists why
 *          E_WORKSPACE    workspace_bytes below ffpa_forward_workspace(), or misaligned; or the call
 *                         needs more than workspace_limit_bytes
 *          E_NO_DEVICE, E_COMPILE, E_DRIVER  device tensors only: no such GPU or no driver, a kernel
 *                         that could not be compiled, a driver that reported an error
 *          E_OUT_OF_MEMORY, E_NEWER
 * cost     2 Hq B pairs (D + Dv) FLOP; memory O(N D), never Nq x Nk
 * threads  any number with one context; outputs and workspaces must be distinct
 * source   arXiv:1805.02867 (online softmax); docs/design/0002 (tiles on the CPU) */
FFPA_API ffpa_status ffpa_forward(ffpa_context *context, const ffpa_forward_params *params);

/* Bytes of workspace that ffpa_forward wants for these params (0 is common). Data pointers are not
 * read, except to tell absent tensors from present ones. Errors, threads: as ffpa_forward. */
FFPA_API ffpa_status ffpa_forward_workspace(ffpa_context *context, const ffpa_forward_params *params,
                                            size_t *bytes);

/* ---- backward ---------------------------------------------------------------------------- */

typedef struct ffpa_backward_params {
    size_t struct_size;
    const ffpa_forward_params *forward; /* the call being differentiated; its o and lse are inputs.
                                           Its stream and workspace fields are not used */
    ffpa_tensor dout;  /* in   [B, Hq, Nq, Dv]  as o; any stride, 0 included */
    ffpa_tensor dlse;  /* in   [B, Hq, Nq, 1 ]  as lse; optional */
    ffpa_tensor dq;    /* out  [B, Hq, Nq, D ]  as q, or f32; each output is optional */
    ffpa_tensor dk;    /* out  [B, Hk, Nk, D ]  summed over the query heads of the group */
    ffpa_tensor dv;    /* out  [B, Hk, Nk, Dv] */
    ffpa_tensor dmask; /* out  shape of an additive mask, its dtype or f32; summed over axes of 1 */
    ffpa_tensor dsink; /* out  [1, Hq, 1, 1]  f32 */
    void *stream;
    void *workspace;
    size_t workspace_bytes;
    size_t workspace_limit_bytes; /* 0 = 1 GiB */
} ffpa_backward_params;

static inline ffpa_backward_params ffpa_backward_params_init(void)
{
    ffpa_backward_params p;
    memset(&p, 0, sizeof p);
    p.struct_size = sizeof p;
    return p;
}

/* Gradients of ffpa_forward, deterministic: bitwise equal from run to run and for any number of
 * threads. Formulas: docs/numerics.md.
 *
 * shapes   see ffpa_backward_params
 * reads    what forward reads, o, lse, dout, dlse
 * writes   the outputs asked for (every element of them, but for packed rows that are nobody's) and
 *          workspace. On failure nothing
 * errors   as ffpa_forward; E_INVALID also when lse is absent or kv_cache is set
 * cost     5 matrix products: 2.5 times forward's FLOP; memory O(N D)
 * threads  as ffpa_forward
 * source   arXiv:2205.14135 (recomputation); docs/design/0003 (backward on the CPU) */
FFPA_API ffpa_status ffpa_backward(ffpa_context *context, const ffpa_backward_params *params);

/* Bytes of workspace that ffpa_backward wants. As ffpa_forward_workspace. */
FFPA_API ffpa_status ffpa_backward_workspace(ffpa_context *context, const ffpa_backward_params *params,
                                             size_t *bytes);

/* ---- merge ------------------------------------------------------------------------------- */

typedef struct ffpa_merge_params {
    size_t struct_size;
    ffpa_tensor o_a;   /* in   [B, H, N, Dv]  f32 | f16 | bf16 | f64 */
    ffpa_tensor lse_a; /* in   [B, H, N, 1 ]  f32 (f64 with f64), natural log */
    ffpa_tensor o_b;   /* in   as o_a */
    ffpa_tensor lse_b; /* in   as lse_a */
    ffpa_tensor o;     /* out  as o_a; may be o_a or o_b itself */
    ffpa_tensor lse;   /* out  as lse_a; optional; may be lse_a or lse_b itself */
    void *stream;
} ffpa_merge_params;

static inline ffpa_merge_params ffpa_merge_params_init(void)
{
    ffpa_merge_params p;
    memset(&p, 0, sizeof p);
    p.struct_size = sizeof p;
    return p;
}

/* Attention over two disjoint key sets from the results over each: weights e^lse, normalised.
 * A part with lse = -inf has no keys and no influence; two of them give o = 0, lse = -inf.
 *
 * reads o_a lse_a o_b lse_b    writes o lse    errors E_INVALID, E_UNSUPPORTED, E_NEWER; on a device also
 * E_NO_DEVICE, E_COMPILE, E_DRIVER
 * cost one pass over the outputs    threads any    source docs/numerics.md */
FFPA_API ffpa_status ffpa_merge(ffpa_context *context, const ffpa_merge_params *params);

/* ---- problems, and asking before calling --------------------------------------------------- */

typedef enum ffpa_op { FFPA_FORWARD = 1, FFPA_BACKWARD = 2 } ffpa_op;

#define FFPA_MAX_LENGTHS 32 /* sequences that a problem string may spell out */

/* A call without its pointers. Text form, parsed and printed by the two functions below:
 *   OP,DTYPE,bBhHq[kHk],qNqkNk,dD[vDv][,option...]      such as bwd,bf16,b2h8k2,q300k300,d512,causal
 * options: causal causal_tl win<L>:<R> mask=bool|f32|f16|bf16[:<axes>] softcap<c> alibi sink
 *   dropout<p> scale<s> bnhd seed<n> varlen=<len>+<len>... page<n>
 * <axes> are the mask's full axes, letters of "bhqk", the others being 1; without it "qk".
 * varlen: one length per batch entry, the longest being Nq = Nk; with page<n> it is the key length
 * of each sequence in the cache, and queries are dense. win: -1 = unlimited. */
typedef struct ffpa_problem {
    size_t struct_size;
    int32_t op;    /* ffpa_op */
    int32_t dtype; /* ffpa_dtype */
    int64_t b, hq, hk, nq, nk, d, dv;
    int32_t causal;                    /* ffpa_causal */
    int32_t has_window;                /* 0 or 1 */
    int64_t window_left, window_right; /* negative = unlimited */
    int32_t mask_dtype;                /* ffpa_dtype, 0 = no mask */
    uint32_t mask_axes;                /* bit 0 b, 1 h, 2 q, 3 k: set where the axis is full */
    float softcap;
    float dropout;
    float scale; /* with has_scale */
    int32_t has_scale;
    int32_t alibi, sink; /* 0 or 1 */
    int32_t bnhd;        /* 1 = memory order [B, N, H, D] */
    int32_t n_lengths;   /* 0 = dense */
    uint64_t seed;       /* of dropout, and of generated data */
    int64_t page;        /* page size, 0 = not paged */
    int64_t lengths[FFPA_MAX_LENGTHS];
} ffpa_problem;

/* Parse a problem string into a struct whose struct_size is set: as much of it as that says is filled, on
 * success. errors E_INVALID with the offending part and its position. Any thread. */
FFPA_API ffpa_status ffpa_problem_parse(const char *text, ffpa_problem *problem);

/* Print a problem in canonical form: parse(format(p)) equals p. Always NUL-terminated within
 * `capacity`; E_INVALID when it does not fit. 1024 bytes suffice. Any thread. */
FFPA_API ffpa_status ffpa_problem_format(const ffpa_problem *problem, char *text, size_t capacity);

/* How a call would run. Filled before the call: nothing is computed, nothing compiled twice. */
typedef struct ffpa_report {
    size_t struct_size;
    size_t workspace_bytes;
    double flop;           /* 2 Hq B pairs (D + Dv), pairs that causal and window allow; 2.5 times that backward */
    double bytes;          /* each input tensor read once, each output tensor written once; index arrays and
                              appended rows left out */
    int32_t tile_q;        /* query rows, keys and head-dimension columns of a tile; 0 = no tiles */
    int32_t tile_k;
    int32_t tile_d;
    int32_t splits;        /* parts the keys are split into; 1 = not split */
    int32_t threads;       /* CPU threads, 0 = not a CPU path */
    int32_t reserved;
    char path[64];         /* such as "cpu/avx2/forward" */
    char refusals[1024];   /* one line per backend that was passed over: "name: reason\n" */
} ffpa_report;

/* Which path ffpa_forward would take, why not another, and what it costs. Returns what ffpa_forward
 * would return before running, but for what is not there yet: the workspace, and tensors whose data is
 * NULL. The report's refusals are filled either way. Offsets and lengths of sequences are read and counted as they are if they are on the host;
 * on a device, and in a plan's report, every sequence counts as the longest that it can be. Any thread. */
FFPA_API ffpa_status ffpa_forward_supported(ffpa_context *context, const ffpa_forward_params *params,
                                            ffpa_report *report);
FFPA_API ffpa_status ffpa_backward_supported(ffpa_context *context, const ffpa_backward_params *params,
                                             ffpa_report *report);

/* The same for a problem without tensors, as contiguous host tensors would have it. Errors as for
 * ffpa_forward. Any thread. */
FFPA_API ffpa_status ffpa_explain(ffpa_context *context, const ffpa_problem *problem,
                                  ffpa_report *report);

/* One line about this context for bug reports: version, backend, ISA, threads. Valid as long as the
 * context. Never NULL. Any thread. */
FFPA_API const char *ffpa_context_describe(const ffpa_context *context);

/* Compile the kernels of a problem for a GPU architecture ("sm_80", "sm_89", "sm_90a", "sm_100a",
 * "sm_120a", ...) into a directory, without a GPU. The directory may be copied anywhere and used as
 * cache_dir, with or without a compiler there. Kernels that it already holds are left alone.
 * errors   E_INVALID arch or directory; E_COMPILE no compiler, or it failed; E_UNSUPPORTED
 * cost     a second or two for each kernel    threads  any */
FFPA_API ffpa_status ffpa_prebuild(ffpa_context *context, const ffpa_problem *problem,
                                   const char *arch, const char *directory);

/* ---- plans: the same calls with planning hoisted out of the loop ----------------------------- */

/* Plan a call. The plan is immutable and may be shared by threads; it belongs to the context, and
 * ffpa_plan_destroy gives it back (NULL is fine). Errors as for the call itself. */
FFPA_API ffpa_status ffpa_plan_forward(ffpa_context *context, const ffpa_forward_params *params,
                                       ffpa_plan **plan);
FFPA_API ffpa_status ffpa_plan_backward(ffpa_context *context, const ffpa_backward_params *params,
                                        ffpa_plan **plan);
FFPA_API void ffpa_plan_destroy(ffpa_plan *plan);

/* Run a planned call. Params may differ from the planned ones in what planning does not look at: addresses,
 * strides, dropout's seed and offset, FFPA_DETERMINISTIC, fields without their flag. Any other difference
 * is E_INVALID. Otherwise as ffpa_forward and ffpa_backward. */
FFPA_API ffpa_status ffpa_plan_run_forward(const ffpa_plan *plan, const ffpa_forward_params *params);
FFPA_API ffpa_status ffpa_plan_run_backward(const ffpa_plan *plan, const ffpa_backward_params *params);

/* What was planned. Errors E_INVALID, E_NEWER. Any thread. */
FFPA_API ffpa_status ffpa_plan_report(const ffpa_plan *plan, ffpa_report *report);

#ifdef __cplusplus
}
#endif
#endif /* FFPA_H */
