/* matrix_model.h - the matrix unit in plain C, for src/cpu/simd/matrix.h: what each instruction does to the tiles of
 * this thread, in the order in which the processor adds. */
#ifndef FFPA_TESTS_MATRIX_MODEL_H
#define FFPA_TESTS_MATRIX_MODEL_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { MODEL_TILES = 8, MODEL_EDGE = 16 };
typedef union model_tile {
    float f[MODEL_EDGE][MODEL_EDGE];
    uint16_t h[MODEL_EDGE][2 * MODEL_EDGE];
} model_tile;

typedef struct matrix_model {
    model_tile tile[MODEL_TILES];
    int ready; /* between matrix_begin and matrix_end */
} matrix_model;

extern _Thread_local matrix_model matrix_of_thread;

static inline model_tile *model_of(int tile)
{
    if (!matrix_of_thread.ready) __builtin_trap();
    return &matrix_of_thread.tile[tile];
}

/* Subnormal numbers are 0, with their sign. */
static inline float model_flush(float x)
{
    return __builtin_fabsf(x) < 0x1p-126f ? __builtin_copysignf(0.0f, x) : x;
}

static inline float model_widen(uint16_t h)
{
    const uint32_t bits = (uint32_t)h << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return model_flush(x);
}

static inline void matrix_begin(void) { matrix_of_thread.ready = 1; }
static inline void matrix_end(void) /* tiles lose what they held */
{
    memset(&matrix_of_thread, 0xff, sizeof matrix_of_thread);
    matrix_of_thread.ready = 0;
}

static inline void matrix_zero(int tile) { memset(model_of(tile), 0, sizeof(model_tile)); }

static inline void matrix_load(int tile, const void *p, ptrdiff_t bytes)
{
    for (int i = 0; i < MODEL_EDGE; i++)
        memcpy(model_of(tile)->f[i], (const char *)p + i * bytes, 64);
}

static inline void matrix_store(int tile, void *p, ptrdiff_t bytes)
{
    for (int i = 0; i < MODEL_EDGE; i++)
        memcpy((char *)p + i * bytes, model_of(tile)->f[i], 64);
}

static inline void matrix_multiply_add(int c, int a, int b)
{
    const model_tile *x = model_of(a), *y = model_of(b);
    model_tile *z = model_of(c);
    for (int i = 0; i < MODEL_EDGE; i++) {
        float sum[2][MODEL_EDGE] = {{0}};
        for (int k = 0; k < MODEL_EDGE; k++)
            for (int half = 0; half < 2; half++) {
                const float factor = model_widen(x->h[i][2 * k + half]);
                for (int j = 0; j < MODEL_EDGE; j++) {
                    const float more = factor * model_widen(y->h[k][2 * j + half]);
                    sum[half][j] = model_flush(sum[half][j] + more);
                }
            }
        for (int j = 0; j < MODEL_EDGE; j++)
            z->f[i][j] = model_flush(z->f[i][j] + (sum[0][j] + sum[1][j]));
    }
}

#endif
