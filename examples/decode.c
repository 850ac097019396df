/* decode.c - one token at a time with a key-value cache: each call appends a key and a value to each
 * sequence and attends over all of its keys. Two sequences of different lengths, D = 512. */
#include <ffpa/ffpa.h>

#include <math.h>
#include <stdio.h>

enum { B = 2, HQ = 8, HK = 1, D = 512, CAPACITY = 16, STEPS = 4 };

static float q[B * HQ * D], o[B * HQ * D], new_k[B * HK * D], new_v[B * HK * D];
static float cache_k[B * HK * CAPACITY * D], cache_v[B * HK * CAPACITY * D];

int main(void)
{
    ffpa_context *context;
    if (ffpa_context_create(NULL, &context) != FFPA_OK) return 1;

    int32_t lengths[B] = {3, 0}; /* the second sequence starts empty */
    for (int i = 0; i < 3 * D; i++)
        cache_k[i] = cosf((float)i), cache_v[i] = 1;

    ffpa_kv_cache cache = {
        .struct_size = sizeof cache, .lengths = lengths, .index_dtype = FFPA_I32};
    cache.k_new = ffpa_tensor_4d(new_k, FFPA_F32, B, HK, 1, D);
    cache.v_new = ffpa_tensor_4d(new_v, FFPA_F32, B, HK, 1, D);
    ffpa_forward_params f = ffpa_forward_params_init();
    f.q = ffpa_tensor_4d(q, FFPA_F32, B, HQ, 1, D);
    f.k = ffpa_tensor_4d(cache_k, FFPA_F32, B, HK, CAPACITY, D);
    f.v = ffpa_tensor_4d(cache_v, FFPA_F32, B, HK, CAPACITY, D);
    f.o = ffpa_tensor_4d(o, FFPA_F32, B, HQ, 1, D);
    f.causal = FFPA_BOTTOM_RIGHT;
    f.kv_cache = &cache;

    float error = 0;
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < B * HQ * D; i++)
            q[i] = sinf((float)(i + step));
        for (int i = 0; i < B * HK * D; i++)
            new_k[i] = cosf((float)(i - step)), new_v[i] = 1;
        if (ffpa_forward(context, &f) != FFPA_OK) {
            fprintf(stderr, "step %d: %s\n", step, ffpa_last_error());
            return 1;
        }
        for (int b = 0; b < B; b++)
            lengths[b]++; /* the caller counts: the new keys are in now */
        for (int i = 0; i < B * HQ * D; i++)
            error = fmaxf(error, fabsf(o[i] - 1)); /* all values are 1 */
        printf("step %d: %d and %d keys, %s\n", step, lengths[0], lengths[1], ffpa_last_path());
    }
    ffpa_context_destroy(context);
    return error < 1e-5f ? 0 : 1;
}
