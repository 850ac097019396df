/* driver.h - the part of NVIDIA's driver API that we use, as a table filled from libcuda at run time.
 * Types and numbers are the driver's ABI, written down here so that no toolkit is needed to build. */
#ifndef FFPA_CUDA_DRIVER_H
#define FFPA_CUDA_DRIVER_H

#include "base/dynlib.h"
#include "base/status.h"

#include <stdint.h>

typedef int cu_result; /* 0 = success */
typedef int cu_device;
typedef struct cu_context_object *cu_context;
typedef struct cu_module_object *cu_module;
typedef struct cu_function_object *cu_function;
typedef struct cu_stream_object *cu_stream;

/* CUdevice_attribute, CUfunction_attribute */
enum {
    CU_DEVICE_SM_COUNT = 16,
    CU_DEVICE_CC_MAJOR = 75,
    CU_DEVICE_CC_MINOR = 76,
    CU_DEVICE_SHARED_OPTIN = 97, /* most shared memory a block may ask for */
    CU_FUNC_REGISTERS = 4,
    CU_FUNC_DYNAMIC_SHARED = 8
};

/* CUlaunchAttribute, of CUlaunchAttributeID */
enum { CU_LAUNCH_OVERLAPS = 6 }; /* "programmatic stream serialization" */
typedef struct cu_launch_attribute {
    int id, reserved;
    union {
        int flag;
        char bytes[64];
    } value;
} cu_launch_attribute;

/* CUlaunchConfig */
typedef struct cu_launch_config {
    unsigned grid[3], block[3];
    unsigned shared_bytes;
    cu_stream stream;
    cu_launch_attribute *attributes;
    unsigned attribute_count;
} cu_launch_config;

/* One row per function: name, CUDA version whose signature this is, parameters. */
#define DRIVER_FUNCTIONS(X)                                                                    \
    X(cuInit, 2000, (unsigned flags))                                                          \
    X(cuDriverGetVersion, 2020, (int *version))                                                \
    X(cuGetErrorName, 6000, (cu_result error, const char **name))                              \
    X(cuGetErrorString, 6000, (cu_result error, const char **text))                            \
    X(cuDeviceGetCount, 2000, (int *count))                                                    \
    X(cuDeviceGet, 2000, (cu_device * device, int ordinal))                                    \
    X(cuDeviceGetName, 2000, (char *name, int bytes, cu_device device))                        \
    X(cuDeviceGetAttribute, 2000, (int *value, int attribute, cu_device device))               \
    X(cuDevicePrimaryCtxRetain, 7000, (cu_context * context, cu_device device))                \
    X(cuDevicePrimaryCtxRelease, 11000, (cu_device device))                                    \
    X(cuCtxPushCurrent, 4000, (cu_context context))                                            \
    X(cuCtxPopCurrent, 4000, (cu_context * context))                                           \
    X(cuModuleLoadData, 2000, (cu_module * module, const void *image))                         \
    X(cuModuleUnload, 2000, (cu_module module))                                                \
    X(cuModuleGetFunction, 2000, (cu_function * function, cu_module module, const char *name)) \
    X(cuFuncGetAttribute, 2020, (int *value, int attribute, cu_function function))             \
    X(cuFuncSetAttribute, 9000, (cu_function function, int attribute, int value))              \
    X(cuLaunchKernelEx, 11060,                                                                 \
      (const cu_launch_config *config, cu_function function, void **args, void **extra))       \
    X(cuMemsetD32Async, 3020,                                                                  \
      (uint64_t address, unsigned value, size_t count, cu_stream stream))                      \
    X(cuTensorMapEncodeTiled, 12000,                                                           \
      (void *map, int type, uint32_t rank, void *address, const uint64_t *extents,             \
       const uint64_t *strides, const uint32_t *box, const uint32_t *steps, int interleave,    \
       int swizzle, int promotion, int fill))

/* Functions that an old driver may lack. */
#define DRIVER_OPTIONAL(X) X(cuFuncLoad, 12040, (cu_function function))

typedef struct driver {
    const dynlib *libs;
    void *library; /* NULL = not open */
    int version;   /* newest CUDA version it serves, such as 12080 */
#define FFPA_X(name, since, parameters) cu_result(*name) parameters;
    DRIVER_FUNCTIONS(FFPA_X)
    DRIVER_OPTIONAL(FFPA_X)
#undef FFPA_X
} driver;

enum { DRIVER_MIN = 12000 };

/* Open libcuda, fill the table, start the driver. E_NO_DEVICE when there is no driver, it is older
 * than CUDA 12.0, or it finds no GPU; *d is then closed. */
ffpa_status driver_open(driver *d, const dynlib *libs);

void driver_close(driver *d); /* not open is fine */

/* E_DRIVER with a sentence "what: NAME (text)" in the driver's own words; FFPA_OK for success. */
ffpa_status driver_check(const driver *d, cu_result result, const char *what);

#endif
