// blocks.cuh - P and dS of sm90/ in the workspace: blocks of 64 x 64 elements, swizzled as they are in shared memory.
#pragma once
#include "common/types.cuh"

static constexpr int BLOCK_ELEMENTS = 64 * 64;

// Element (row, column) of a block.
FFPA_DEVICE int block_element(int row, int column) { return row * 64 + ((column >> 3) ^ (row & 7)) * 8 + (column & 7); }

// With a mask a pair that nobody sees is -0 in both. A weight that is dropped or too small for the dtype is 0: it lets NaN and
// Inf through.
static constexpr u32 UNSEEN = 0x8000;
// The weight p of a pair with score v. The selection is out of the compiler's sight, who would branch around the exponential.
FFPA_DEVICE float weight_of(float v, float p)
{
    float weight;
    asm("{\n\t"
        ".reg .pred unseen;\n\t"
        "setp.eq.f32 unseen, %1, 0fFF800000;\n\t"
        "selp.f32 %0, 0f80000000, %2, unseen;\n\t"
        "}"
        : "=f"(weight)
        : "f"(v), "f"(p));
    return weight;
}
FFPA_DEVICE bool unseen(float x) { return __float_as_uint(x) == UNSEEN << 16; }
