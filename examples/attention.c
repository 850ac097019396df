/* attention.c - forward and backward of one causal layer: 8 query heads share 2 key heads, D = 512. */
#include <ffpa/ffpa.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { B = 1, HQ = 8, HK = 2, N = 128, D = 512 };

static ffpa_tensor tensor(int h, int d, float wave)
{
    float *data = malloc(sizeof *data * B * (size_t)h * N * (size_t)d);
    for (int i = 0; data && i < B * h * N * d; i++)
        data[i] = sinf(wave * (float)i);
    return ffpa_tensor_4d(data, FFPA_F32, B, h, N, d);
}

static int failed(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, ffpa_last_error());
    return 1;
}

int main(void)
{
    ffpa_context *context;
    if (ffpa_context_create(NULL, &context) != FFPA_OK) return failed("context");

    ffpa_forward_params f = ffpa_forward_params_init();
    f.causal = FFPA_BOTTOM_RIGHT;
    f.q = tensor(HQ, D, 0.37f);
    f.k = tensor(HK, D, 0.73f);
    f.v = tensor(HK, D, 0.19f);
    f.o = tensor(HQ, D, 0);
    f.lse = tensor(HQ, 1, 0); /* backward needs it */
    if (ffpa_forward(context, &f) != FFPA_OK) return failed("forward");
    printf("forward  %s\n", ffpa_last_path());

    ffpa_backward_params g = ffpa_backward_params_init();
    g.forward = &f;
    g.dout = tensor(HQ, D, 0.11f);
    g.dq = tensor(HQ, D, 0);
    g.dk = tensor(HK, D, 0);
    g.dv = tensor(HK, D, 0);
    if (ffpa_backward(context, &g) != FFPA_OK) return failed("backward");
    printf("backward %s\n", ffpa_last_path());

    /* The first query sees the first key alone, so its output is that key's value. */
    const float *o = f.o.data, *v = f.v.data;
    float error = 0;
    for (int d = 0; d < D; d++)
        error = fmaxf(error, fabsf(o[d] - v[d]));
    printf("first row: error %.1e\n", (double)error);
    ffpa_tensor all[] = {f.q, f.k, f.v, f.o, f.lse, g.dout, g.dq, g.dk, g.dv};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i].data);
    ffpa_context_destroy(context);
    return error < 1e-5f ? 0 : 1;
}
