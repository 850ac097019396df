// bwd_mask.cuh - gradient of an additive mask: dbias of a chunk summed over the mask's broadcast axes, in one order.
// A CTA makes 256 neighbouring keys of one mask row, a thread a key; or, where one mask row serves all queries, 32 of them: 8 warps
// share the source rows. Of a mask of one key a thread has every 256th (32nd) key of the source.
#include "common/epilogue.cuh"
#include "common/live.cuh"

static constexpr int THREADS = 256;

struct Target {
    int b, h, i, j;   // of the mask; j: of this thread
    int width, share; // threads along the keys; which share of the source rows is this thread's
};

// Source rows of one line and head, those of this thread's share.
FFPA_DEVICE float line_sum(const dmask_args &a, const Target &x, const Sequence &s, const float *tile, int row)
{
    const Live live = live_keys(a.left, a.right, a.top_left, s, row);
    const bool one_row = a.mq > 1, many_keys = a.mk > 1;
    const int begin = live.from * TILE, end = live.to * TILE < s.nk ? live.to * TILE : s.nk;
    const int r_end = one_row ? x.i - row + 1 : TILE < s.nq - row ? TILE : s.nq - row;
    float sum = 0.0f;
    for (int r = one_row ? x.i - row : x.share; r < r_end; r += THREADS / x.width) {
        const float *at = tile + r * a.chunk.ld;
        if (many_keys)
            sum += x.j >= begin && x.j < end ? at[x.j] : 0.0f;
        else
            for (int j = begin + x.j; j < end; j += x.width) sum += at[j];
    }
    return sum;
}

// Sum over this thread's share of the source rows, which are those of the line that has row x.i where the mask has rows.
FFPA_DEVICE float rows_sum(const dmask_args &a, const Target &x)
{
    const k_chunk &c = a.chunk;
    const int tiles = (a.seq.nq + TILE - 1) / TILE;
    const int h_from = a.mh > 1 ? max(x.h, c.h0) : c.h0, h_to = a.mh > 1 ? min(x.h + 1, c.h0 + c.nh) : c.h0 + c.nh;
    const int b_from = a.mb > 1 ? x.b : c.t0 / tiles, b_to = a.mb > 1 ? x.b + 1 : (c.t0 + c.nt - 1) / tiles + 1;
    float sum = 0.0f;
    for (int b = b_from; b < b_to; b++) {
        const Sequence s = sequence_at(a.seq, b);
        const int from = max(b * tiles + (a.mq > 1 ? x.i / TILE : 0), c.t0);
        const int to = min(a.mq > 1 ? b * tiles + x.i / TILE + 1 : (b + 1) * tiles, c.t0 + c.nt);
#pragma unroll 1
        for (int line = from; line < to; line++)
#pragma unroll 1
            for (int h = h_from; h < h_to; h++)
                sum += line_sum(a, x, s, a.dbias + ((i64)((h - c.h0) * c.nt + line - c.t0) * TILE) * c.ld, (line - b * tiles) * TILE);
    }
    return sum;
}

// Without partial sums a mask element belongs to one chunk: is it this one?
FFPA_DEVICE bool owned(const dmask_args &a, const Target &x)
{
    const k_chunk &c = a.chunk;
    const int line = x.b * ((a.seq.nq + TILE - 1) / TILE) + x.i / TILE;
    return (a.mh == 1 || (x.h >= c.h0 && x.h < c.h0 + c.nh)) && (a.mq == 1 || (line >= c.t0 && line < c.t0 + c.nt));
}

extern "C" __global__ void __launch_bounds__(THREADS, 4) ffpa_kernel(const __grid_constant__ dmask_args a)
{
    __shared__ float sums[THREADS];
    const int thread = threadIdx.x, width = a.mq > 1 ? THREADS : 32, blocks = (a.mk + width - 1) / width;
    const int mask_row = blockIdx.x / blocks; // a grid has less than 2^31 blocks
    int rest = mask_row;
    Target x;
    x.j = (int)(blockIdx.x % blocks) * width + thread % width, x.width = width, x.share = thread / width;
    x.i = rest % a.mq, rest /= a.mq;
    x.h = rest % a.mh, x.b = rest / a.mh;
    sums[thread] = rows_sum(a, x);
    __syncthreads();
    for (int n = THREADS / 2; n >= (a.mk > 1 ? width : 1); n /= 2) { // shares, and the keys of a mask of one
        if (thread < n) sums[thread] += sums[thread + n];
        __syncthreads();
    }
    if (thread >= width || x.j >= a.mk) return;
    float sum = sums[thread];
    const i64 at = (i64)mask_row * a.mk + x.j;
    if (a.partial && !a.first) sum += a.partial[at];
    if (a.partial && !a.last)
        a.partial[at] = sum;
    else if (a.partial || owned(a, x))
        element_put(a.dmask.data, x.b * a.dmask.sb + x.h * a.dmask.sh + x.i * a.dmask.sn + x.j * a.dmask.sd, FFPA_O_DTYPE, sum);
}
