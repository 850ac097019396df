/* sample_call.c - see sample_call.h. */
#include "support/sample_call.h"

#include <string.h>

static ffpa_tensor f32(float *data, int64_t b, int64_t h, int64_t n, int64_t d)
{
    return ffpa_tensor_4d(data, FFPA_F32, b, h, n, d);
}

static void fill(float *x, size_t n, unsigned seed)
{
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(seed >> 8) / 16777216.0f - 0.5f;
    }
}

#define FILL(array, seed) fill(array, sizeof(array) / sizeof(array)[0], seed)

static void sample_fill(sample_memory *m)
{
    memset(m, 0x5a, sizeof *m); /* outputs start as a number that no result is */
    FILL(m->q, 1), FILL(m->k, 2), FILL(m->v, 3), FILL(m->mask, 4), FILL(m->alibi, 5),
        FILL(m->sink, 6);
    FILL(m->dout, 7), FILL(m->dlse, 8), FILL(m->k_new, 9), FILL(m->v_new, 10);
    for (int i = 0; i < SB; i++)
        m->batch_index[i] = m->pages[i] = SB - 1 - i;
    memcpy(m->cu_q, (int32_t[]){0, 1, 3}, sizeof m->cu_q);
    memcpy(m->cu_k, (int32_t[]){0, 2, 5}, sizeof m->cu_k);
    memcpy(m->lengths, (int32_t[]){4, 2}, sizeof m->lengths);
    memcpy(m->rows, (int64_t[]){0, 2}, sizeof m->rows);
}

void sample_init(sample_call *s)
{
    sample_memory *m = &s->mem;
    memset(s, 0, sizeof *s);
    sample_fill(m);
    s->f = ffpa_forward_params_init();
    s->f.q = f32(m->q, SB, SHQ, SNQ, SD);
    s->f.k = f32(m->k, SB, SHK, SNK, SD);
    s->f.v = f32(m->v, SB, SHK, SNK, SDV);
    s->f.o = f32(m->o, SB, SHQ, SNQ, SDV);
    s->f.lse = f32(m->lse, SB, SHQ, SNQ, 1);
    s->g = ffpa_backward_params_init();
    s->g.forward = &s->f;
    s->g.dout = f32(m->dout, SB, SHQ, SNQ, SDV);
    s->g.dq = f32(m->dq, SB, SHQ, SNQ, SD);
    s->g.dk = f32(m->dk, SB, SHK, SNK, SD);
    s->g.dv = f32(m->dv, SB, SHK, SNK, SDV);
    s->m = ffpa_merge_params_init();
    s->m.o_a = f32(m->q, SB, SHQ, SNQ, SDV);
    s->m.o_b = f32(m->dout, SB, SHQ, SNQ, SDV);
    s->m.lse_a = f32(m->mask, SB, SHQ, SNQ, 1);
    s->m.lse_b = f32(m->dlse, SB, SHQ, SNQ, 1);
    s->m.o = s->f.o;
    s->m.lse = s->f.lse;
    s->dropout = (ffpa_dropout){.struct_size = sizeof s->dropout, .p = 0.25f, .seed = 7};
    s->varlen = (ffpa_varlen){.struct_size = sizeof s->varlen,
                              .batch = SB,
                              .cu_q = m->cu_q,
                              .cu_k = m->cu_k,
                              .index_dtype = FFPA_I32};
    s->cache = (ffpa_kv_cache){.struct_size = sizeof s->cache,
                               .lengths = m->lengths,
                               .index_dtype = FFPA_I32,
                               .k_new = f32(m->k_new, SB, SHK, 1, SD),
                               .v_new = f32(m->v_new, SB, SHK, 1, SDV)};
    s->quant.struct_size = sizeof s->quant;
    s->rows = (ffpa_row_subset){.struct_size = sizeof s->rows, .count = 2, .rows = m->rows};
}

void sample_attach_mask(sample_call *s)
{
    s->f.mask = f32(s->mem.mask, SB, SHQ, SNQ, SNK);
    s->g.dmask = f32(s->mem.dmask, SB, SHQ, SNQ, SNK);
}

void sample_attach_alibi(sample_call *s) { s->f.alibi = f32(s->mem.alibi, SB, SHQ, 1, 1); }

void sample_attach_sink(sample_call *s)
{
    s->f.sink = f32(s->mem.sink, 1, SHQ, 1, 1);
    s->g.dsink = f32(s->mem.dsink, 1, SHQ, 1, 1);
}

void sample_attach_dropout(sample_call *s) { s->f.dropout = &s->dropout; }

void sample_attach_varlen(sample_call *s)
{
    sample_memory *m = &s->mem;
    s->f.varlen = &s->varlen;
    s->f.q = f32(m->q, 1, SHQ, SNQ, SD);
    s->f.k = f32(m->k, 1, SHK, SNK, SD);
    s->f.v = f32(m->v, 1, SHK, SNK, SDV);
    s->f.o = f32(m->o, 1, SHQ, SNQ, SDV);
    s->f.lse = f32(m->lse, 1, SHQ, SNQ, 1);
    s->g.dout = f32(m->dout, 1, SHQ, SNQ, SDV);
    s->g.dq = f32(m->dq, 1, SHQ, SNQ, SD);
    s->g.dk = f32(m->dk, 1, SHK, SNK, SD);
    s->g.dv = f32(m->dv, 1, SHK, SNK, SDV);
}

void sample_attach_cache(sample_call *s)
{
    s->f.kv_cache = &s->cache;
    s->cache.batch_index = s->mem.batch_index;
}

void sample_attach_pages(sample_call *s)
{
    s->f.kv_cache = &s->cache;
    s->cache.block_table = s->mem.pages;
    s->cache.table_width = 1;
}
