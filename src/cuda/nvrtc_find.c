/* nvrtc_find.c - where the run-time compiler may be: pip packages, the system, CUDA's own folder. */
#include "cuda/nvrtc.h"

#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Layouts of the pip packages under a Python prefix: NVIDIA's since CUDA 13, before, and torch's. */
static const char *const PACKAGES[] = {
    "lib/python3*/site-packages/nvidia/cu[0-9]*/lib/libnvrtc.so.*",
    "lib/python3*/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.*",
    "lib/python3*/site-packages/torch/lib/libnvrtc[.-]*so*",
    "lib/python3*/dist-packages/nvidia/cu[0-9]*/lib/libnvrtc.so.*",
    "lib/python3*/dist-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.*",
    "lib/python3*/dist-packages/torch/lib/libnvrtc[.-]*so*",
};

/* Layouts under a folder that the caller names. */
static const char *const FOLDERS[] = {"libnvrtc.so*", "lib/libnvrtc.so*", "lib64/libnvrtc.so*"};

static const char *const SYSTEM[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"};
static const char *const CUDA_FOLDERS = "/usr/local/cuda*/lib64/libnvrtc.so.1[2-9]";

/* Is this a library of the compiler, and not its companion (torch's names carry a hash)? */
static bool is_compiler(const char *path)
{
    const char *name = strrchr(path, '/');
    return !strstr(name ? name : path, "builtins") && !strstr(name ? name : path, ".alt.");
}

/* "libnvrtc-builtins.so.13.0" -> 13, 0. False for names without both numbers. */
static bool version_of_name(const char *path, int *major, int *minor)
{
    const char *number = strstr(path, "libnvrtc-builtins.so.");
    return number && sscanf(number, "libnvrtc-builtins.so.%d.%d", major, minor) == 2;
}

/* "folder/pattern" for glob, which is to find nothing special in the folder; false when it does not fit. */
static bool under(char out[DISK_PATH], const char *folder, const char *pattern)
{
    char plain[DISK_PATH];
    size_t n = 0;
    for (const char *c = folder; *c; c++) {
        if (n + 2 >= sizeof plain) return false;
        if (strchr("*?[]\\", *c)) plain[n++] = '\\';
        plain[n++] = *c;
    }
    plain[n] = 0;
    return disk_join(out, plain, pattern);
}

/* The companion in the compiler's folder. Its name carries the version, which so becomes known without
 * opening anything; when several versions lie there, none is taken. */
static void find_companion(nvrtc_place *place)
{
    char folder[DISK_PATH], pattern[DISK_PATH];
    glob_t found;
    snprintf(folder, sizeof folder, "%s", place->path);
    char *slash = strrchr(folder, '/');
    if (!slash) return;
    *slash = 0;
    if (!under(pattern, folder, "libnvrtc-builtins.so.*") ||
        glob(pattern, 0, NULL, &found) != 0)
        return;
    for (size_t i = 0; i < found.gl_pathc; i++) {
        int major, minor;
        if (!version_of_name(found.gl_pathv[i], &major, &minor)) continue;
        if (place->major && (place->major != major || place->minor != minor)) {
            place->major = place->minor = 0;
            place->builtins[0] = 0;
            break;
        }
        place->major = major;
        place->minor = minor;
        if (!*place->builtins)
            snprintf(place->builtins, sizeof place->builtins, "%s", found.gl_pathv[i]);
    }
    globfree(&found);
}

/* Why candidates were passed over, for the sentence. */
typedef struct seeker {
    const dynlib *libs;
    int max_major;
    nvrtc_place *place;
    char passed[400];
} seeker;

static void pass_over(seeker *s, const char *path, const char *reason)
{
    const size_t used = strlen(s->passed);
    snprintf(s->passed + used, sizeof s->passed - used, "; %s: %s", path, reason);
}

/* Take this library if it can be opened, is a compiler, and fits the driver. */
static bool take(seeker *s, const char *path)
{
    nvrtc opened;
    nvrtc_place *p = s->place;
    *p = (nvrtc_place){.major = 0};
    if (!is_compiler(path) || strlen(path) >= sizeof p->path) return false;
    snprintf(p->path, sizeof p->path, "%s", path);
    find_companion(p);
    if (!p->major) {
        if (nvrtc_open(&opened, s->libs, p) != FFPA_OK) {
            if (strchr(path, '/')) pass_over(s, path, "cannot be opened");
            return false;
        }
        p->major = opened.major;
        p->minor = opened.minor;
        nvrtc_close(&opened);
    }
    if (s->max_major && p->major > s->max_major) {
        char reason[80];
        snprintf(reason, sizeof reason, "CUDA %d.%d is newer than the driver's CUDA %d",
                 p->major, p->minor, s->max_major);
        pass_over(s, path, reason);
        return false;
    }
    return true;
}

/* Newest names first: glob sorts, so from its end. */
static bool take_pattern(seeker *s, const char *pattern)
{
    glob_t found;
    bool taken = false;
    if (glob(pattern, 0, NULL, &found) != 0) return false;
    for (size_t i = found.gl_pathc; i-- > 0 && !taken;)
        taken = take(s, found.gl_pathv[i]);
    globfree(&found);
    return taken;
}

static bool take_under(seeker *s, const char *folder, const char *const *patterns, size_t count)
{
    char pattern[DISK_PATH];
    for (size_t i = 0; i < count; i++)
        if (under(pattern, folder, patterns[i]) && take_pattern(s, pattern)) return true;
    return false;
}

#define TAKE_UNDER(s, folder, patterns) \
    take_under(s, folder, patterns, sizeof(patterns) / sizeof(patterns)[0])

static bool take_prefixes(seeker *s, const char *prefixes)
{
    char prefix[DISK_PATH];
    for (const char *p = prefixes; p && *p;) {
        const size_t length = strcspn(p, ":");
        snprintf(prefix, sizeof prefix, "%.*s", (int)length, p);
        if (length && length < sizeof prefix && TAKE_UNDER(s, prefix, PACKAGES)) return true;
        p += length + (p[length] == ':');
    }
    return false;
}

ffpa_status nvrtc_find(const dynlib *libs, const nvrtc_search *search, nvrtc_place *place)
{
    seeker s = {.libs = libs, .max_major = search->max_major, .place = place};
    struct stat info;
    if (search->given) {
        const bool folder = stat(search->given, &info) == 0 && S_ISDIR(info.st_mode);
        if (folder ? TAKE_UNDER(&s, search->given, FOLDERS) ||
                         TAKE_UNDER(&s, search->given, PACKAGES)
                   : take(&s, search->given))
            return FFPA_OK;
        return fail(FFPA_E_COMPILE,
                    "nvrtc: nvrtc_path (FFPA_NVRTC) '%.300s' leads to no usable NVRTC%s",
                    search->given, s.passed);
    }
    if (take_prefixes(&s, search->prefixes)) return FFPA_OK;
    for (size_t i = 0; i < sizeof SYSTEM / sizeof SYSTEM[0]; i++)
        if (take(&s, SYSTEM[i])) return FFPA_OK;
    if (take_pattern(&s, CUDA_FOLDERS)) return FFPA_OK;
    return fail(
        FFPA_E_COMPILE,
        "nvrtc: no usable NVRTC among the Python packages (%.300s), the system's libraries and "
        "/usr/local/cuda%s; `pip install nvidia-cuda-nvrtc` or set FFPA_NVRTC",
        search->prefixes ? search->prefixes : "no prefix", s.passed);
}
