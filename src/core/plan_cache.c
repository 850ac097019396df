/* plan_cache.c - plans by problem, the least recently used one leaving when all places are taken.
 * One lock around a lookup of a few hashes: a hit holds it for tens of nanoseconds. Planning happens
 * outside it, so a slow plan delays nobody else; two threads may plan the same problem at once, and
 * the second one's plan is dropped. A forked child renews the lock and keeps the plans: an entry caught in
 * the middle of a change is a plan under the wrong hash or time, which only costs a miss. */
#include "core/plan.h"

#include "base/forked.h"

#include <pthread.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

enum { PLAN_CACHE_ENTRIES = 256 };

struct plan_cache {
    const allocator *alloc;
    pthread_mutex_t lock;
    fork_mark process; /* that `lock` belongs to */
    uint64_t clock;    /* counts lookups */
    struct entry {
        uint64_t hash;
        uint64_t used;   /* clock of the last hit */
        ffpa_plan *plan; /* NULL = free place */
    } entry[PLAN_CACHE_ENTRIES];
};

static void renew_lock(void *state) { pthread_mutex_init(&((plan_cache *)state)->lock, NULL); }

plan_cache *plan_cache_new(const allocator *a)
{
    plan_cache *cache = mem_new(a, sizeof *cache);
    if (!cache) return NULL;
    cache->alloc = a;
    renew_lock(cache);
    fork_mark_here(&cache->process);
    return cache;
}

void plan_cache_free(plan_cache *cache)
{
    if (!cache) return;
    fork_check(&cache->process, renew_lock, cache);
    for (int i = 0; i < PLAN_CACHE_ENTRIES; i++)
        plan_release(cache->entry[i].plan);
    pthread_mutex_destroy(&cache->lock);
    mem_free(cache->alloc, cache);
}

/* The cached plan with one more reference, or NULL. Called with the lock held. */
static ffpa_plan *find(plan_cache *cache, uint64_t hash, const problem *prob)
{
    cache->clock++;
    for (int i = 0; i < PLAN_CACHE_ENTRIES; i++) {
        struct entry *e = &cache->entry[i];
        if (!e->plan || e->hash != hash || memcmp(&e->plan->prob, prob, sizeof *prob) != 0)
            continue;
        e->used = cache->clock;
        atomic_fetch_add(&e->plan->references, 1);
        return e->plan;
    }
    return NULL;
}

/* Take the place of the least recently used plan, which the caller releases outside the lock. */
static ffpa_plan *insert(plan_cache *cache, uint64_t hash, ffpa_plan *plan)
{
    struct entry *oldest = &cache->entry[0];
    for (int i = 0; i < PLAN_CACHE_ENTRIES && oldest->plan; i++) {
        struct entry *e = &cache->entry[i];
        if (!e->plan || e->used < oldest->used) oldest = e;
    }
    ffpa_plan *evicted = oldest->plan;
    atomic_fetch_add(&plan->references, 1);
    *oldest = (struct entry){hash, cache->clock, plan};
    return evicted;
}

ffpa_status plan_get(ffpa_context *ctx, const problem *prob, const char *fn, ffpa_plan **plan)
{
    plan_cache *cache = ctx->plans;
    const uint64_t hash = XXH3_64bits(prob, sizeof *prob);
    fork_check(&cache->process, renew_lock, cache);
    pthread_mutex_lock(&cache->lock);
    *plan = find(cache, hash, prob);
    pthread_mutex_unlock(&cache->lock);
    if (*plan) return FFPA_OK;

    ffpa_plan *made, *evicted = NULL;
    TRY(plan_make(ctx, prob, fn, &made, NULL));
    pthread_mutex_lock(&cache->lock);
    *plan = find(cache, hash, prob); /* another thread may have been faster */
    if (!*plan) evicted = insert(cache, hash, made);
    pthread_mutex_unlock(&cache->lock);
    if (*plan)
        plan_release(made);
    else
        *plan = made;
    plan_release(evicted);
    return FFPA_OK;
}
