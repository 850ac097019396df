/* args.h - what the host tells the kernels. Compiled by the C compiler and by NVRTC; each checks the sizes.
 *
 * One struct per entry, passed by value as the only parameter. Strides count elements, offsets are 64-bit.
 * "row" of a packed tensor: batch entry 0, rows cu[s] .. cu[s+1]-1 belong to sequence s. */
/* clang-format off: fields and their comments stand in columns, by hand */
#ifndef FFPA_KERNELS_ARGS_H
#define FFPA_KERNELS_ARGS_H

typedef long long k_i64;
typedef unsigned long long k_u64;

/* A strided view in logical order [b, h, n, d]; stride 0 = broadcast; data NULL = absent. */
typedef struct k_tensor {
    void *data;
    k_i64 sb, sh, sn, sd;
} k_tensor;

/* Where the rows and keys of each sequence are. Sources that are absent are NULL. */
typedef struct k_sequences {
    const void *cu_q;        /* [batch + 1] row offsets of packed queries */
    const void *cu_k;        /* [batch + 1] row offsets of packed keys */
    const void *lengths;     /* [batch] keys in the cache before this call */
    const void *batch_index; /* [batch] cache entry of a sequence */
    const void *block_table; /* [batch, table_width] pages */
    k_i64 table_stride;      /* elements between rows of block_table */
    k_i64 entries;           /* cache entries or pages: an index outside is clamped, never followed */
    k_i64 total_q, total_k;  /* rows of q and of k over all sequences; batch * nq, batch * nk when dense */
    int batch;               /* sequences */
    int nq, nk;              /* dense: rows, keys of each sequence; packed: total rows; cache: capacity in keys
                                (entry length, or table_width * page_size) */
    int new_keys;            /* appended by this call; they count on top of lengths */
    int page_size;           /* 0 = not paged */
    int table_width;
    int index64;             /* 1: all index arrays are i64, 0: i32 */
    int reserved;
} k_sequences;

/* What a score is (common/scores.cuh). The host folds causal into `right` (0, or a smaller window). */
typedef struct k_scores {
    k_tensor mask;           /* [B, Hq, Nq, Nk], broadcast axes have stride 0 */
    const float *alibi;      /* slopes */
    k_i64 alibi_sb, alibi_sh;
    const float *sink;       /* [Hq] */
    k_i64 sink_sh;
    float scale;             /* on Q K^T */
    float softcap;
    int left, right;         /* keys before and after the centre; negative = unlimited */
    int top_left;            /* centre: 1 = i, 0 = i + Nk - Nq */
    int reserved;
} k_scores;

/* core/dropout.h's dropout_key, before the device adds seed_ptr and offset_ptr. */
typedef struct k_dropout {
    const k_u64 *seed_ptr, *offset_ptr; /* NULL = use the values */
    k_u64 seed, offset;
    k_u64 threshold;
    float keep_scale;
    int reserved;
} k_dropout;

/* A tensor map (CUtensorMap) as the driver encodes it, for the copy engine. Kernels take its address within
 * their parameter. */
#ifdef __cplusplus
#    define FFPA_ALIGN64 alignas(64)
#else
#    define FFPA_ALIGN64 _Alignas(64)
#endif
typedef struct k_map {
    FFPA_ALIGN64 unsigned char opaque[128];
} k_map;

enum { K_MAX_SPLITS = 256, K_MAX_PARTS = 32 }; /* parts of the keys, at most: of sm80/, of sm90/ */

/* Tiles of sm90/ whose keys are cut into parts (FFPA_SPLIT), and where these leave what sm90/fwd_combine_sm90.cuh joins. */
typedef struct k_parts {
    float *o;                 /* [splits][rows][DV], rows = Hq * total_q - first_row */
    float *lse;               /* [splits][rows] */
    k_i64 first_row;          /* of head * total_q + row: the rows before it are in whole tiles */
    int splits;               /* parts of a tile */
    int whole;                /* so many tiles, the first ones, are not cut */
} k_parts;

/* sm80/fwd_sm80.cuh */
typedef struct fwd_args {
    k_tensor q, k, v, o, lse; /* lse.data NULL = not wanted; with FFPA_SPLIT o and lse are not used */
    float *o_part;            /* [splits][Hq][total_q][DV]   FFPA_SPLIT */
    float *lse_part;          /* [splits][Hq][total_q]       FFPA_SPLIT */
    k_sequences seq;
    k_scores scores;
    k_dropout dropout;
    int hq, hk, group;        /* group = hq / hk */
    int tiles;                /* query tiles of one head over all sequences (README: tile lines) */
    int splits;               /* 1 unless FFPA_SPLIT */
    int reserved;
} fwd_args;

/* sm90/fwd_one_sm90.cuh */
typedef struct fwd_one_args {
    k_map q_map, k_map, v_map; /* boxes of 64 columns: by 64 rows of q, by FFPA_BN keys */
    fwd_args f;                /* tiles: lines of FFPA_BM rows of one head; splits and partial results are those of `parts` */
    unsigned *counter;         /* 0 before the launch: tiles handed out; NULL = there are as many CTAs as tiles */
    int heads;                 /* heads that have `tiles` tiles: batch * hq when q is dense, else hq */
    int head_group;            /* of them walked together: their K and V fit the L2 */
    float unit;                /* scale * log2(e) */
    float back, back_rest;     /* scale / unit, in two parts: from log2 units to natural ones */
    int wide;                  /* rows of o start at 16 bytes, and Dv is a multiple of 8 */
    k_parts parts;             /* FFPA_SPLIT */
} fwd_one_args;

/* sm90/fwd_pair_sm90.cuh */
typedef struct fwd_pair_args {
    k_map q, k;               /* boxes of 64 rows x 64 columns: map_rows */
    k_map v, v_half;          /* V slots, and the half chunk (fwd_pair_plan_sm90.cuh) */
    k_tensor o, lse;          /* rows of o at 16 bytes; lse.data NULL = not wanted */
    k_tensor q_rows, k_rows, v_rows; /* the tensors behind the maps */
    k_sequences seq;
    k_scores scores;
    k_dropout dropout;
    unsigned *counter;        /* 0 before the launch: tiles handed out beyond one per pair */
    int hq, group;
    int tiles, total;         /* lines of 128 query rows of one head; items of all heads: tiles, or parts of them */
    float scale_log2;         /* scale * log2 e */
    int reserved;
    k_parts parts;            /* FFPA_SPLIT */
} fwd_pair_args;

/* sm90/fwd_spill_p_sm90.cuh, sm90/fwd_spill_pv_sm90.cuh: dense queries; dense keys, or a cache without pages */
typedef struct fwd_spill_args {
    k_map q, k, v, o_map;     /* boxes of 128, 192, 64 and 64 rows x 64 columns: map_rows */
    k_tensor q_rows, k_rows, v_rows, o; /* the tensors behind the maps */
    k_tensor lse;             /* data NULL = not wanted */
    k_scores scores;
    void *p;                  /* the workspace: fwd_spill_plan_sm90.cuh */
    const void *zero;
    unsigned *moved;
    float *factor, *inverse, *base;
    unsigned *tickets;        /* the next item of each kernel: cleared before the first chunk, then by the other kernel */
    int head0, heads;         /* the chunk: heads head0 .. of B * Hq, */
    int row0, q_tiles;        /* q_tiles x 128 rows of each, from row0 on */
    int k_blocks, k_tiles;    /* of 64 and of 192 keys */
    int run_blocks, side;     /* blocks of a run of P; heads walked side by side */
    int hq, group, nq, nk;
    float scale_log2;         /* scale * log2 e */
    float bend;               /* scale / softcap */
    k_dropout dropout;
    int mask_wide;            /* keys of the mask lie side by side: 16 of a bool mask at 16 bytes, two of an added one at its pairs */
    int reserved;
    k_sequences seq;          /* FFPA_CACHE */
} fwd_spill_args;

/* any/split_combine.cuh */
typedef struct combine_args {
    const float *o_part, *lse_part;
    k_tensor o, lse;
    k_sequences seq;
    int hq, splits, dv;
    int slices;               /* CTAs of a row: each has every so-manieth run of 64 columns */
} combine_args;

/* sm90/fwd_combine_sm90.cuh */
typedef struct join_args {
    k_parts parts;
    k_tensor o, lse;
    k_sequences seq;
    const float *sink;        /* [Hq]   FFPA_SINK */
    k_i64 sink_sh;
    int hq, dv;
} join_args;

/* any/merge.cuh */
typedef struct merge_args {
    k_tensor o_a, lse_a, o_b, lse_b, o, lse;
    int b, h, n, dv;
} merge_args;

/* any/append.cuh: k_new and v_new into the cache */
typedef struct append_args {
    k_tensor k_new, v_new, k, v;
    k_sequences seq;
    int hk, d, dv, reserved;
} append_args;

/* any/bwd_delta.cuh: delta[h][row] = <dO, O> - dLSE */
typedef struct delta_args {
    k_tensor o, dout, dlse;
    float *delta; /* [Hq][total_q] */
    k_sequences seq;
    int hq, dv;
} delta_args;

/* A chunk of the backward workspace: query heads h0 .. h0+nh-1, lines of query tiles t0 .. t0+nt-1.
 *   element (h, t, r, j) of P or dS = base[(((h - h0) * nt + (t - t0)) * FFPA_ROWS + r) * ld + j]
 * with FFPA_ROWS = 128 rows a tile; j counts keys within the sequence. */
typedef struct k_chunk {
    k_i64 ld;          /* >= the longest possible Nk, a multiple of 128 */
    int h0, nh, t0, nt;
} k_chunk;

/* sm80/bwd_pds_sm80.cuh */
typedef struct pds_args {
    k_tensor q, k, v, dout, lse;
    const float *delta;
    void *p, *ds;      /* dtype of the inputs; P is what multiplies dO (dropout included), dS what multiplies K and Q */
    float *dbias;      /* f32, FFPA_DMASK only: gradient of the biased score, same layout */
    k_sequences seq;
    k_scores scores;
    k_dropout dropout;
    k_chunk chunk;
    int hq, hk, group;
    int key_tiles;     /* tiles of 128 keys: ceil(ld / 128) */
} pds_args;

/* any/bwd_renorm.cuh: rows of P, dS and dbias of a chunk divided by the row's sum of P where LSE is coarse */
typedef struct renorm_args {
    void *p, *ds;
    float *dbias;      /* or NULL */
    k_tensor lse;
    k_sequences seq;
    k_chunk chunk;
    int left, right, top_left, reserved;
} renorm_args;

/* sm80/bwd_gemm_sm80.cuh */
typedef struct gemm_args {
    const void *a;     /* P or dS */
    k_tensor b;        /* FFPA_KEYS: dO (for dV) or Q (for dK); else K (for dQ) */
    k_tensor out;      /* dV, dK or dQ */
    float *partial;    /* FFPA_KEYS and several chunks a kv head: [kv heads of chunk][total_k][cols]; else NULL */
    k_sequences seq;
    k_chunk chunk;
    float alpha;       /* scale for dK, dQ; 1 for dV */
    int hq, hk, group;
    int cols;          /* D or Dv */
    int left, right, top_left; /* as in k_scores */
    int first, last;   /* FFPA_KEYS: does this chunk begin, finish its kv heads? */
    int key_tiles;     /* FFPA_KEYS: lines of key tiles of one head over all sequences */
    int reserved;
} gemm_args;

/* any/bwd_mask.cuh: dmask from dbias, one chunk */
typedef struct dmask_args {
    const float *dbias;
    k_tensor dmask;    /* broadcast axes have stride 0 */
    float *partial;    /* [outputs] f32 where a mask element spans several chunks; else NULL */
    k_sequences seq;
    k_chunk chunk;
    int hq;
    int mb, mh, mq, mk; /* shape of dmask: each 1 or full */
    int left, right, top_left;
    int first, last;   /* first and last chunk of the call */
} dmask_args;

/* any/bwd_sink.cuh: dsink[h] = -sum e^(sink - lse) delta */
typedef struct dsink_args {
    k_tensor lse;
    const float *delta, *sink;
    float *dsink;
    k_i64 sink_sh, dsink_sh;
    k_sequences seq;
    int hq, reserved;
} dsink_args;

/* Where the blocks of P and dS of a chunk are in sm90/: 64 x 64 elements each. Line l is first + growth l blocks wide, twice: for each
 * half of its rows. Where early rows see few keys, growth is not 0 and lines are those of a sequence; else lines of all sequences are
 * numbered through. With before(l) of shapes.h, block (h, s, l, half, j) for keys 64 j .. 64 j + 63 is number
 *   (h - h0) head + s sequence + before(l) - start + half (first + growth l) + j */
typedef struct k_stairs {
    int first, growth;
    k_i64 head, sequence, start;
} k_stairs;

/* sm90/bwd_pds_sm90.cuh */
typedef struct pds90_args {
    k_map q, dout;     /* boxes of 128 rows */
    k_map k, v;        /* boxes of FFPA_BN rows */
    k_tensor lse;
    const float *delta;
    void *p, *ds;      /* as in pds_args, but in blocks (README: workspaces) */
    unsigned *tickets; /* [2], set to 0 for the products that follow */
    k_sequences seq;
    k_scores scores;
    k_dropout dropout;
    k_chunk chunk;
    k_stairs stairs;
    int hq, hk, group, reserved;
    float *dbias;      /* as in pds_args, rows of ld elements */
} pds90_args;

/* sm90/bwd_gemm_sm90.cuh: products dV (0), dK (1), dQ (2) with as many columns, in one launch */
typedef struct products_args {
    k_map b[3];        /* dO, Q, K: boxes of 64 rows */
    k_map out[3];      /* the same of dV, dK, dQ */
    k_tensor b_rows[3], out_rows[3]; /* the tensors themselves */
    const void *p, *ds;
    float *partial[2]; /* sums of dV, dK where a kv head takes several chunks (README: workspaces); else NULL */
    unsigned *ticket;  /* next tile */
    k_sequences seq;
    k_chunk chunk;
    k_stairs stairs;
    float scale;       /* of dK and dQ */
    int hq, hk, group;
    int columns;       /* D or Dv */
    int order[3];      /* products to make, the longest sums first; -1 behind the last */
    int key_units, query_units; /* lines of units (shapes.h) of keys and of query rows over all sequences */
    int left, right, top_left;  /* as in k_scores */
    int last;          /* does this chunk finish its kv heads? */
} products_args;

/* sm90/bwd_fused_sm90.cuh. FFPA_KEYS: own K and V, walked Q and dO, out dK and dV; else own Q and dO, walked K and V, out dQ */
typedef struct fused_args {
    k_map own1, own2;   /* boxes of 64 rows x 64 columns */
    k_map walk1, walk2; /* boxes of FFPA_BN rows x 64 columns */
    k_tensor own[2], walked[2]; /* the same */
    k_tensor out1, out2;        /* data NULL = not wanted */
    k_tensor lse;
    const float *delta; /* [Hq][total_q] */
    k_sequences seq;
    k_scores scores;
    int hq, hk, group;
    int tiles, heads;   /* lines of 128 own rows of one head; heads that have so many: batch * its heads unless packed */
    int head_group;     /* of them walked together: their walked rows fit the L2 */
    float unit;         /* scale * log2(e) */
    int wide1, wide2;   /* rows of the outputs start at 16 bytes, and have a multiple of 8 columns */
    int joins;          /* delta is there already, and the launch before is to be waited for at the end */
} fused_args;

#ifdef __cplusplus
#    define FFPA_ARGS_SIZE(type, bytes) static_assert(sizeof(type) == (bytes), "args.h: " #type)
#else
#    define FFPA_ARGS_SIZE(type, bytes) _Static_assert(sizeof(type) == (bytes), "args.h: " #type)
#endif
FFPA_ARGS_SIZE(k_tensor, 40);
FFPA_ARGS_SIZE(k_sequences, 104);
FFPA_ARGS_SIZE(k_scores, 104);
FFPA_ARGS_SIZE(k_dropout, 48);
FFPA_ARGS_SIZE(k_chunk, 24);
FFPA_ARGS_SIZE(k_stairs, 32);
FFPA_ARGS_SIZE(k_map, 128);
FFPA_ARGS_SIZE(fwd_args, 496);
FFPA_ARGS_SIZE(k_parts, 32);
FFPA_ARGS_SIZE(fwd_one_args, 960);
FFPA_ARGS_SIZE(fwd_pair_args, 1088);
FFPA_ARGS_SIZE(fwd_spill_args, 1088);
FFPA_ARGS_SIZE(combine_args, 216);
FFPA_ARGS_SIZE(join_args, 240);
FFPA_ARGS_SIZE(merge_args, 256);
FFPA_ARGS_SIZE(append_args, 280);
FFPA_ARGS_SIZE(delta_args, 240);
FFPA_ARGS_SIZE(pds_args, 528);
FFPA_ARGS_SIZE(renorm_args, 208);
FFPA_ARGS_SIZE(gemm_args, 272);
FFPA_ARGS_SIZE(pds90_args, 960);
FFPA_ARGS_SIZE(products_args, 1280);
FFPA_ARGS_SIZE(fused_args, 1088);
FFPA_ARGS_SIZE(dmask_args, 224);
FFPA_ARGS_SIZE(dsink_args, 192);
#undef FFPA_ARGS_SIZE
#endif
