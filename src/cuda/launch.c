/* launch.c - the hot path to the driver: make the device current, enqueue, put back what was. */
#include "cuda/cuda_context.h"

#include <inttypes.h>

enum { MAX_BLOCKS = 0x7fffffff };

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

ffpa_status cuda_launch(const cuda_device *device, const cuda_kernel *kernel, void *stream,
                        cuda_grid grid, void *args)
{
    void *parameters[] = {args};
    CHECK(grid.blocks <= MAX_BLOCKS, FFPA_E_UNSUPPORTED,
          "cuda: %s would need %" PRId64 " blocks, at most %d fit a grid", kernel->v.name,
          grid.blocks, MAX_BLOCKS);
    if (grid.blocks == 0) return FFPA_OK;
    const cu_launch_config config = {.grid = {(unsigned)grid.blocks, 1, 1},
                                     .block = {grid.threads, 1, 1},
                                     .shared_bytes = kernel->shared_bytes,
                                     .stream = stream};
    const cu_result result =
        device->drv->cuLaunchKernelEx(&config, kernel->function, parameters, NULL);
    if (result == 0) return FFPA_OK;
    return driver_check(device->drv, result, kernel->v.name);
}
