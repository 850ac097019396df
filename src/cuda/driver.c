/* driver.c - opening libcuda and naming its errors. */
#include "cuda/driver.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* cuGetProcAddress_v2: `status` says why a function is missing. */
typedef cu_result (*get_address_fn)(const char *name, void **address, int version,
                                    uint64_t flags, int *status);

static dynlib_fn find(get_address_fn get, const char *name, int version)
{
    void *address = NULL;
    int status = 0;
    dynlib_fn fn = NULL;
    if (get(name, &address, version, 0, &status) == 0 && address)
        memcpy(&fn, &address, sizeof fn);
    return fn;
}

static ffpa_status fill_table(driver *d)
{
    get_address_fn get;
    dynlib_store(&get, d->libs->symbol(d->library, "cuGetProcAddress_v2"));
    CHECK(get, FFPA_E_NO_DEVICE,
          "cuda: the NVIDIA driver (libcuda.so.1) is older than CUDA 12.0; update it");
#define FFPA_X(name, since, parameters) dynlib_store(&d->name, find(get, #name, since));
    DRIVER_FUNCTIONS(FFPA_X)
    DRIVER_OPTIONAL(FFPA_X)
#undef FFPA_X
#define FFPA_X(name, since, parameters) \
    CHECK(d->name, FFPA_E_NO_DEVICE, "cuda: the NVIDIA driver lacks " #name "; update it");
    DRIVER_FUNCTIONS(FFPA_X)
#undef FFPA_X
    return FFPA_OK;
}

/* A failure to start is the absence of a device, in the driver's words. */
static ffpa_status start_check(const driver *d, cu_result result, const char *what)
{
    if (driver_check(d, result, what) == FFPA_OK) return FFPA_OK;
    char sentence[256];
    snprintf(sentence, sizeof sentence, "%s", ffpa_last_error());
    return fail(FFPA_E_NO_DEVICE, "%s", sentence);
}

static ffpa_status start(driver *d)
{
    int devices = 0;
    TRY(start_check(d, d->cuDriverGetVersion(&d->version), "cuDriverGetVersion"));
    CHECK(d->version >= DRIVER_MIN, FFPA_E_NO_DEVICE,
          "cuda: the NVIDIA driver serves CUDA %d.%d; this library needs 12.0 or newer",
          d->version / 1000, d->version % 1000 / 10);
    TRY(start_check(d, d->cuInit(0), "cuInit"));
    TRY(start_check(d, d->cuDeviceGetCount(&devices), "cuDeviceGetCount"));
    CHECK(devices > 0, FFPA_E_NO_DEVICE,
          "cuda: the NVIDIA driver finds no GPU (CUDA_VISIBLE_DEVICES hides it?)");
    return FFPA_OK;
}

ffpa_status driver_open(driver *d, const dynlib *libs)
{
    char why[256] = "";
    *d = (driver){.libs = libs};
    d->library = libs->open("libcuda.so.1", false, why, sizeof why);
    CHECK(d->library, FFPA_E_NO_DEVICE, "cuda: there is no NVIDIA driver: %s", why);
    ffpa_status status = fill_table(d);
    if (status == FFPA_OK) status = start(d);
    if (status != FFPA_OK) driver_close(d);
    return status;
}

void driver_close(driver *d)
{
    if (d->library) d->libs->close(d->library);
    *d = (driver){.libs = d->libs};
}

ffpa_status driver_check(const driver *d, cu_result result, const char *what)
{
    const char *name = NULL, *text = NULL;
    if (result == 0) return FFPA_OK;
    if (d->cuGetErrorName(result, &name) != 0) name = NULL;
    if (d->cuGetErrorString(result, &text) != 0) text = NULL;
    return fail(FFPA_E_DRIVER, "cuda: %s: %s %d (%s)", what, name ? name : "error", result,
                text ? text : "no description");
}
