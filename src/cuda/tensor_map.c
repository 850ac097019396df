/* tensor_map.c - describing boxes, encoding maps, keeping them. */
#include "cuda/tensor_map.h"

#include <inttypes.h>
#include <pthread.h>
#include <string.h>

enum {
    CHUNK_BYTES = 128,
    TYPE_F16 = 6,
    TYPE_F32 = 7,
    TYPE_BF16 = 9,
    SWIZZLE_128 = 3,
    PROMOTE_256 = 3
};

/* ---- shapes ---------------------------------------------------------------------------------------- */

static int64_t element_bytes(int32_t dtype) { return dtype == FFPA_F32 ? 4 : 2; }

/* Bytes between neighbours on an axis. One of a single element has any stride; the driver wants a sound one. */
static int64_t step_bytes(const ffpa_tensor *t, int axis)
{
    const int64_t bytes = element_bytes(t->dtype);
    return t->shape[axis] > 1 ? t->stride[axis] * bytes : (t->shape[3] * bytes + 15) / 16 * 16;
}

map_shape map_rows(const ffpa_tensor *t, int rows)
{
    map_shape s;
    memset(&s, 0, sizeof s);
    s.data = t->data;
    s.dtype = t->dtype;
    s.rank = 4;
    for (int i = 0; i < 4; i++) {
        s.extent[i] = t->shape[3 - i];
        s.box[i] = 1;
        if (i > 0) s.stride_bytes[i - 1] = step_bytes(t, 3 - i);
    }
    s.box[0] = (int32_t)(CHUNK_BYTES / element_bytes(t->dtype));
    s.box[1] = rows;
    return s;
}

map_shape map_chunks(const ffpa_tensor *t, int rows, int chunks)
{
    map_shape s = map_rows(t, rows);
    for (int i = 4; i > 2; i--) {
        s.extent[i] = s.extent[i - 1];
        s.stride_bytes[i - 1] = s.stride_bytes[i - 2];
    }
    s.rank = 5;
    s.extent[2] = s.extent[0] / s.box[0];
    s.extent[0] = s.box[0];
    s.stride_bytes[1] = CHUNK_BYTES;
    s.box[2] = chunks;
    s.box[4] = 1;
    return s;
}

static ffpa_status encode(const driver *drv, const map_shape *s, k_map *map)
{
    uint64_t extent[5], stride[4];
    uint32_t box[5], step[5];
    for (int i = 0; i < s->rank; i++) {
        extent[i] = (uint64_t)s->extent[i];
        box[i] = (uint32_t)s->box[i];
        step[i] = 1;
        if (i > 0) stride[i - 1] = (uint64_t)s->stride_bytes[i - 1];
    }
    const int type = s->dtype == FFPA_F32   ? TYPE_F32
                     : s->dtype == FFPA_F16 ? TYPE_F16
                                            : TYPE_BF16;
    return driver_check(drv,
                        drv->cuTensorMapEncodeTiled(map, type, (uint32_t)s->rank, s->data,
                                                    extent, stride, box, step, 0, SWIZZLE_128,
                                                    PROMOTE_256, 0),
                        "cuTensorMapEncodeTiled");
}

/* ---- cache ----------------------------------------------------------------------------------------- */

enum { SETS = 8 };

typedef struct map_set {
    uint64_t used; /* clock of the last use; 0 = empty */
    int count;
    map_shape shape[MAP_SET];
    k_map map[MAP_SET];
} map_set;

struct map_cache {
    const allocator *alloc;
    pthread_mutex_t lock;
    uint64_t clock;
    map_set set[SETS];
};

map_cache *map_cache_new(const allocator *a)
{
    map_cache *cache = mem_new(a, sizeof *cache);
    if (!cache) return NULL;
    cache->alloc = a;
    pthread_mutex_init(&cache->lock, NULL);
    return cache;
}

void map_cache_free(map_cache *cache)
{
    if (!cache) return;
    pthread_mutex_destroy(&cache->lock);
    mem_free(cache->alloc, cache);
}

/* Called with the lock held. */
static bool find(map_cache *cache, const map_shape *shapes, int count, k_map *maps)
{
    for (int i = 0; i < SETS; i++) {
        map_set *s = &cache->set[i];
        if (!s->used || s->count != count ||
            memcmp(s->shape, shapes, (size_t)count * sizeof *shapes) != 0)
            continue;
        s->used = ++cache->clock;
        memcpy(maps, s->map, (size_t)count * sizeof *maps);
        return true;
    }
    return false;
}

/* In place of the set that was unused for longest. Called with the lock held. */
static void keep(map_cache *cache, const map_shape *shapes, int count, const k_map *maps)
{
    map_set *oldest = &cache->set[0];
    for (int i = 1; i < SETS; i++)
        if (cache->set[i].used < oldest->used) oldest = &cache->set[i];
    oldest->used = ++cache->clock;
    oldest->count = count;
    memcpy(oldest->shape, shapes, (size_t)count * sizeof *shapes);
    memcpy(oldest->map, maps, (size_t)count * sizeof *maps);
}

ffpa_status map_cache_get(map_cache *cache, const driver *drv, const map_shape *shapes,
                          int count, k_map *maps)
{
    CHECK(count <= MAP_SET, FFPA_E_INTERNAL, "cuda: %d tensor maps for one launch, at most %d",
          count, MAP_SET);
    pthread_mutex_lock(&cache->lock);
    const bool found = find(cache, shapes, count, maps);
    pthread_mutex_unlock(&cache->lock);
    if (found) return FFPA_OK;
    for (int i = 0; i < count; i++)
        TRY(encode(drv, &shapes[i], &maps[i]));
    pthread_mutex_lock(&cache->lock);
    keep(cache, shapes, count, maps); /* twice when two threads missed at once: harmless */
    pthread_mutex_unlock(&cache->lock);
    return FFPA_OK;
}
