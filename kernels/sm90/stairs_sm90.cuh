// stairs_sm90.cuh - where the blocks of P and dS of a line are in the workspace (k_stairs of args.h).
#pragma once
#include "common/args.h"
#include "common/shapes.h"
#include "common/types.cuh"

// A line as k_stairs counts: `line` of a sequence, whose first is line `before` of all sequences.
FFPA_DEVICE int stairs_line(const k_stairs &s, int line, int before) { return s.growth ? line : before + line; }

// Blocks that each half of a line is wide.
FFPA_DEVICE int stairs_width(const k_stairs &s, int line) { return s.first + s.growth * line; }

// Blocks from a row of blocks to the next but one, when `width` are from it to the next. A step is short: no product here.
FFPA_DEVICE int stairs_down(const k_stairs &s, int row_block, int width)
{
    return FFPA_RANGE && (row_block & 1) ? width + s.growth : width;
}

// The first block of a line of head `head` of the chunk.
FFPA_DEVICE i64 stairs_block(const k_stairs &s, int head, int sequence, int line)
{
    return head * s.head + sequence * s.sequence + stairs_before(s.first, s.growth, line) - s.start;
}
