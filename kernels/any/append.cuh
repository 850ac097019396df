// append.cuh - new rows of k and v into the cache, behind the rows each sequence has. One warp a row. A row that
// the cache has no room for is not written.
#include "common/epilogue.cuh"
#include "common/sequences.cuh"

FFPA_DEVICE void row_copy(const k_tensor &from, i64 at, const k_tensor &to, char *row, int columns)
{
    for (int c = threadIdx.x & 31; c < columns; c += 32)
        element_put(row, c * to.sd, DTYPE, element_get(from.data, at + c * from.sd, DTYPE));
}

extern "C" __global__ void __launch_bounds__(256) ffpa_kernel(const __grid_constant__ append_args a)
{
    const i64 x = (i64)blockIdx.x * 8 + (threadIdx.x >> 5);
    if (x >= (i64)a.seq.batch * a.hk * a.seq.new_keys) return;
    const i64 i = x % a.seq.new_keys, h = x / a.seq.new_keys % a.hk, b = x / a.seq.new_keys / a.hk;
    const Sequence s = sequence_at(a.seq, (int)b);
    const i64 j = index_at(a.seq.lengths, a.seq.index64, b) + i;
    if (j < 0 || j >= a.seq.nk) return;
    const KeyRows k = key_rows(a.k, a.seq, s, (int)h, ES), v = key_rows(a.v, a.seq, s, (int)h, ES);
    row_copy(a.k_new, b * a.k_new.sb + h * a.k_new.sh + i * a.k_new.sn, a.k, (char *)key_row(k, a.seq, (int)j), a.d);
    row_copy(a.v_new, b * a.v_new.sb + h * a.v_new.sh + i * a.v_new.sn, a.v, (char *)key_row(v, a.seq, (int)j), a.dv);
}
