/* header_alone.c - the public header by itself, with nothing included before it. */
#include "ffpa/ffpa.h"

int main(void)
{
    const ffpa_forward_params forward = ffpa_forward_params_init();
    const ffpa_backward_params backward = ffpa_backward_params_init();
    const ffpa_merge_params merge = ffpa_merge_params_init();
    const ffpa_tensor t = ffpa_tensor_4d(NULL, FFPA_BF16, 2, 3, 5, 7);
    return forward.struct_size != sizeof forward || backward.struct_size != sizeof backward ||
           merge.struct_size != sizeof merge || t.stride[0] != 105 || t.stride[1] != 35 ||
           t.stride[2] != 7 || t.stride[3] != 1 || t.device != FFPA_HOST;
}
