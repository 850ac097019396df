/* test_tensor_map.c - tensor maps: what the driver is told of a tensor, and that nothing is encoded twice. */
#include "cuda/tensor_map.h"

#include "fake/fake_cuda.h"
#include "support/unit.h"

#include <pthread.h>
#include <string.h>

static driver drv;
static map_cache *cache;

static int set_up(void **state)
{
    (void)state;
    fake_reset();
    fake_allocations_fail_at(0);
    if (driver_open(&drv, &fake_dynlib) != FFPA_OK) return 1;
    cache = map_cache_new(&allocator_default);
    return cache ? 0 : 1;
}

static int tear_down(void **state)
{
    (void)state;
    map_cache_free(cache);
    driver_close(&drv);
    return FAKE.libraries;
}

static ffpa_tensor tensor(uintptr_t address, int64_t b, int64_t h, int64_t n, int64_t d)
{
    return ffpa_tensor_4d((void *)address, FFPA_BF16, b, h, n, d); // NOLINT: never followed
}

static uintptr_t address_of(const k_map *map)
{
    uintptr_t address;
    memcpy(&address, map->opaque, sizeof address);
    return address;
}

static void rows_of_a_tensor_in_any_order(void **state)
{
    (void)state;
    ffpa_tensor t = tensor(4096, 2, 3, 100, 72);
    t.stride[1] = 72, t.stride[2] = 3 * 72; /* [B, N, H, D] */
    const map_shape s = map_rows(&t, 128);
    const int64_t extent[4] = {72, 100, 3, 2},
                  stride[3] = {3 * 72 * 2, 72 * 2, 100 * 3 * 72 * 2};
    const int32_t box[4] = {64, 128, 1, 1};
    assert_int_equal(s.rank, 4);
    assert_memory_equal(s.extent, extent, sizeof extent);
    assert_memory_equal(s.stride_bytes, stride, sizeof stride);
    assert_memory_equal(s.box, box, sizeof box);
}

static void whole_chunks_only(void **state)
{
    (void)state;
    const ffpa_tensor t = tensor(4096, 2, 3, 100, 328);
    const map_shape s = map_chunks(&t, 16, 2);
    const int64_t extent[5] = {64, 100, 5, 3, 2}, stride[4] = {656, 128, 100 * 656, 300 * 656};
    const int32_t box[5] = {64, 16, 2, 1, 1};
    assert_int_equal(s.rank, 5);
    assert_memory_equal(s.extent, extent, sizeof extent);
    assert_memory_equal(s.stride_bytes, stride, sizeof stride);
    assert_memory_equal(s.box, box, sizeof box);
}

static void strides_of_single_elements_do_not_matter(void **state)
{
    (void)state;
    k_map map;
    ffpa_tensor t = tensor(4096, 1, 1, 1, 65);
    t.stride[0] = -3, t.stride[1] = 0, t.stride[2] = 7;
    const map_shape s = map_rows(&t, 64);
    assert_int_equal(map_cache_get(cache, &drv, &s, 1, &map), FFPA_OK);
}

static void known_pointers_encode_nothing(void **state)
{
    (void)state;
    k_map maps[2];
    for (int round = 0; round < 3; round++)
        for (uintptr_t set = 1; set <= 8; set++) {
            const ffpa_tensor a = tensor(set * 4096, 1, 2, 300, 512),
                              b = tensor(set * 8192, 1, 2, 300, 512);
            const map_shape shapes[2] = {map_rows(&a, 64), map_chunks(&b, 16, 4)};
            assert_int_equal(map_cache_get(cache, &drv, shapes, 2, maps), FFPA_OK);
            assert_int_equal(address_of(&maps[0]), set * 4096);
            assert_int_equal(address_of(&maps[1]), set * 8192);
        }
    assert_int_equal(FAKE.maps, 16);
    /* a ninth set takes the place of the first, which was unused for longest; the second stays */
    const ffpa_tensor ninth = tensor(9 * 4096, 1, 2, 300, 512);
    const map_shape shapes[2] = {map_rows(&ninth, 64), map_rows(&ninth, 64)};
    assert_int_equal(map_cache_get(cache, &drv, shapes, 2, maps), FFPA_OK);
    const int after = FAKE.maps;
    for (uintptr_t set = 2; set >= 1; set--) {
        const ffpa_tensor a = tensor(set * 4096, 1, 2, 300, 512),
                          b = tensor(set * 8192, 1, 2, 300, 512);
        const map_shape again[2] = {map_rows(&a, 64), map_chunks(&b, 16, 4)};
        assert_int_equal(map_cache_get(cache, &drv, again, 2, maps), FFPA_OK);
        assert_int_equal(FAKE.maps, set == 2 ? after : after + 2);
    }
}

static void other_shapes_at_the_same_address_are_others(void **state)
{
    (void)state;
    k_map map;
    for (int64_t n = 1; n <= 3; n++) {
        const ffpa_tensor t = tensor(4096, 1, 2, n * 100, 512);
        const map_shape s = map_rows(&t, 64);
        assert_int_equal(map_cache_get(cache, &drv, &s, 1, &map), FFPA_OK);
        assert_int_equal(FAKE.maps, n);
    }
}

static void a_refusal_is_the_drivers_and_is_not_kept(void **state)
{
    (void)state;
    k_map map;
    const ffpa_tensor bad = tensor(4100, 1, 2, 300, 512), good = tensor(4096, 1, 2, 300, 512);
    const map_shape s = map_rows(&bad, 64), fine = map_rows(&good, 64);
    assert_status(map_cache_get(cache, &drv, &s, 1, &map), FFPA_E_DRIVER,
                  "cuTensorMapEncodeTiled");
    FAKE.fail_at = FAKE.calls + 1;
    assert_status(map_cache_get(cache, &drv, &fine, 1, &map), FFPA_E_DRIVER,
                  "CUDA_ERROR_ON_DEMAND");
    assert_int_equal(map_cache_get(cache, &drv, &fine, 1, &map), FFPA_OK);
    assert_int_equal(FAKE.maps, 1);
}

static void *look_up(void *seed)
{
    for (uintptr_t i = 0; i < 2000; i++) {
        const uintptr_t set = (uintptr_t)seed + i % 7;
        const ffpa_tensor t = tensor(set * 4096, 1, 2, 300, 512);
        const map_shape s = map_rows(&t, 64);
        k_map map;
        if (map_cache_get(cache, &drv, &s, 1, &map) != FFPA_OK ||
            address_of(&map) != set * 4096)
            return seed;
    }
    return NULL;
}

static void threads_share_a_cache(void **state)
{
    (void)state;
    pthread_t threads[4];
    for (uintptr_t i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, look_up, (void *)(i + 1)),
                         0); // NOLINT
    for (int i = 0; i < 4; i++) {
        void *wrong;
        assert_int_equal(pthread_join(threads[i], &wrong), 0);
        assert_null(wrong);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(rows_of_a_tensor_in_any_order, set_up, tear_down),
        cmocka_unit_test_setup_teardown(whole_chunks_only, set_up, tear_down),
        cmocka_unit_test_setup_teardown(strides_of_single_elements_do_not_matter, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(known_pointers_encode_nothing, set_up, tear_down),
        cmocka_unit_test_setup_teardown(other_shapes_at_the_same_address_are_others, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(a_refusal_is_the_drivers_and_is_not_kept, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(threads_share_a_cache, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
