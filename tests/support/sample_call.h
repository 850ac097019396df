/* sample_call.h - one small, valid call with every tensor in place, for tests that then break or
 * vary a detail of it. All memory is in the struct, so a copy of it shows whatever was written. */
#ifndef FFPA_TESTS_SAMPLE_CALL_H
#define FFPA_TESTS_SAMPLE_CALL_H

#include "ffpa/ffpa.h"

/* B2 Hq4 Hk2 Nq3 Nk5 D8 Dv6, f32, contiguous. */
enum { SB = 2, SHQ = 4, SHK = 2, SNQ = 3, SNK = 5, SD = 8, SDV = 6 };

typedef struct sample_memory {
    float q[SB * SHQ * SNQ * SD], k[SB * SHK * SNK * SD], v[SB * SHK * SNK * SDV];
    float o[SB * SHQ * SNQ * SDV], lse[SB * SHQ * SNQ];
    float mask[SB * SHQ * SNQ * SNK], alibi[SB * SHQ], sink[SHQ];
    float dout[SB * SHQ * SNQ * SDV], dlse[SB * SHQ * SNQ];
    float dq[SB * SHQ * SNQ * SD], dk[SB * SHK * SNK * SD], dv[SB * SHK * SNK * SDV];
    float dmask[SB * SHQ * SNQ * SNK], dsink[SHQ];
    float k_new[SB * SHK * SD], v_new[SB * SHK * SDV];
    int32_t cu_q[SB + 1], cu_k[SB + 1], lengths[SB], batch_index[SB], pages[SB];
    int64_t rows[2];
    _Alignas(64) char workspace[64];
} sample_memory;

typedef struct sample_call {
    ffpa_forward_params f;
    ffpa_backward_params g; /* g.forward is &f: do not copy this struct */
    ffpa_merge_params m;
    ffpa_dropout dropout;
    ffpa_varlen varlen;
    ffpa_kv_cache cache;
    ffpa_quant quant;
    ffpa_row_subset rows;
    sample_memory mem;
} sample_call;

/* q k v o lse, dout dq dk dv, and a merge of two halves; the rest is ready but not attached. */
void sample_init(sample_call *s);

void sample_attach_mask(sample_call *s);  /* f32 [B,Hq,Nq,Nk], with dmask */
void sample_attach_alibi(sample_call *s); /* [B,Hq,1,1] */
void sample_attach_sink(sample_call *s);  /* with dsink */
void sample_attach_dropout(sample_call *s);
void sample_attach_varlen(sample_call *s); /* q and k packed: lengths 1, 2 and 2, 3 */
void sample_attach_cache(sample_call *s);  /* lengths 4 and 2, one appended key each */
void sample_attach_pages(sample_call *s);  /* the same with one page a sequence */

#endif
