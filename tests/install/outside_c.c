/* outside_c.c - a user's program. It has functions named like internal ones of the library. */
#include <ffpa/ffpa.h>

#include <stdio.h>

int plan_get(int key);
int fail(int code);

int plan_get(int key) { return key + 1; }
int fail(int code) { return -code; }

int main(void)
{
    /* Two equal keys: attention is the mean of their values. */
    float q[2] = {1, 0}, k[4] = {1, 2, 1, 2}, v[4] = {1, 2, 3, 4}, o[2] = {0};
    ffpa_context *context = NULL;
    if (ffpa_context_create(NULL, &context) != FFPA_OK) return puts(ffpa_last_error()), 1;

    ffpa_forward_params p = ffpa_forward_params_init();
    p.q = ffpa_tensor_4d(q, FFPA_F32, 1, 1, 1, 2);
    p.k = ffpa_tensor_4d(k, FFPA_F32, 1, 1, 2, 2);
    p.v = ffpa_tensor_4d(v, FFPA_F32, 1, 1, 2, 2);
    p.o = ffpa_tensor_4d(o, FFPA_F32, 1, 1, 1, 2);
    const ffpa_status status = ffpa_forward(context, &p);
    ffpa_context_destroy(context);
    if (status != FFPA_OK) return puts(ffpa_last_error()), 1;
    if (o[0] != 2.0f || o[1] != 3.0f) return printf("o = %g %g, not 2 3\n", o[0], o[1]), 1;
    return plan_get(1) != 2 || fail(1) != -1;
}
