/* launch.c - the hot path to the driver: make the device current, enqueue, put back what was. */
#include "cuda/cuda_context.h"

#include <inttypes.h>

ffpa_status cuda_check_blocks(const variant *v, int64_t blocks)
{
    enum { MAX_BLOCKS = 0x7fffffff };
    CHECK(blocks <= MAX_BLOCKS, FFPA_E_UNSUPPORTED,
          "cuda: %s would need %" PRId64 " blocks, at most %d fit a grid", v->name, blocks,
          MAX_BLOCKS);
    return FFPA_OK;
}

ffpa_status cuda_enter(const cuda_device *device)
{
    return driver_check(device->drv, device->drv->cuCtxPushCurrent(device->primary),
                        "cuCtxPushCurrent");
}

ffpa_status cuda_leave(const cuda_device *device, ffpa_status status)
{
    cu_context popped;
    const cu_result result = device->drv->cuCtxPopCurrent(&popped);
    return status == FFPA_OK ? driver_check(device->drv, result, "cuCtxPopCurrent") : status;
}

static ffpa_status launch(const cuda_device *device, const cuda_kernel *kernel,
                          cu_launch_config *config, cuda_grid grid, void *args)
{
    void *parameters[] = {args};
    TRY(cuda_check_blocks(&kernel->v, grid.blocks));
    if (grid.blocks == 0) return FFPA_OK;
    config->grid[0] = (unsigned)grid.blocks;
    config->block[0] = grid.threads;
    config->grid[1] = config->grid[2] = config->block[1] = config->block[2] = 1;
    config->shared_bytes = kernel->shared_bytes;
    const cu_result result =
        device->drv->cuLaunchKernelEx(config, kernel->function, parameters, NULL);
    if (result == 0) return FFPA_OK;
    return driver_check(device->drv, result, kernel->v.name);
}

ffpa_status cuda_launch(const cuda_device *device, const cuda_kernel *kernel, void *stream,
                        cuda_grid grid, void *args)
{
    cu_launch_config config = {.stream = stream};
    return launch(device, kernel, &config, grid, args);
}

ffpa_status cuda_launch_early(const cuda_device *device, const cuda_kernel *kernel,
                              void *stream, cuda_grid grid, void *args)
{
    cu_launch_attribute overlap = {.id = CU_LAUNCH_OVERLAPS, .value = {.flag = 1}};
    cu_launch_config config = {.stream = stream, .attributes = &overlap, .attribute_count = 1};
    return launch(device, kernel, &config, grid, args);
}
