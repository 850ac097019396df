// desc_sm90.cuh - how wgmma finds a matrix in shared memory: rows of 128 bytes, 128-byte swizzle, tiles aligned to 1024.
#pragma once
#include "common/types.cuh"

// High word of every descriptor: 1024 bytes from one group of 8 rows to the next, 128-byte swizzle.
static constexpr u32 DESC_HIGH = (1024 >> 4) | (1u << 30);

// Low word of a K-major tile (rows of Q, K, P along the product's depth; 16 elements on: + 2), and of one chunk of
// 64 columns of an MN-major tile (V, keys along the depth; 16 keys on: + 128). In a cluster a shared address carries
// the CTA's rank above bit 17: it must not reach the next field.
FFPA_DEVICE u32 desc_chunk(u32 addr) { return (addr & 0x3FFFF) >> 4 | 1u << 16; }

// Low word of an MN-major tile of several chunks, `chunk_bytes` from one to the next.
FFPA_DEVICE u32 desc_chunks(u32 addr, u32 chunk_bytes) { return (addr & 0x3FFFF) >> 4 | (chunk_bytes >> 4) << 16; }
