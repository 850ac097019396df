// blocks.cuh - P and dS of sm90/ in the workspace: blocks of 64 x 64 elements, swizzled as they are in shared memory.
#pragma once
#include "common/types.cuh"

static constexpr int BLOCK_ELEMENTS = 64 * 64;

// Element (row, column) of a block.
FFPA_DEVICE int block_element(int row, int column) { return row * 64 + ((column >> 3) ^ (row & 7)) * 8 + (column & 7); }

// With a mask a pair that nobody sees is -0 in both. A weight that is dropped or too small for the dtype is 0: it lets NaN and
// Inf through.
static constexpr u32 UNSEEN = 0x8000;
FFPA_DEVICE bool unseen(float x) { return __float_as_uint(x) == UNSEEN << 16; }
