// SPDX-License-Identifier: Apache-2.0
#include "worker/processors/module.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#ifndef WORKER_MODULES // a program that is not installed
#define WORKER_MODULES "../lib/banyan"
#endif

bool worker_module_find(const char *name, char *out, size_t cap)
{
    char program[3072];
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    if (n <= 0)
        return false;
    program[n] = '\0';
    char *slash = strrchr(program, '/');
    if (!slash)
        return false;
    *slash = '\0';
    static const char *const places[] = {"", "/../lib", ("/" WORKER_MODULES)};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        snprintf(out, cap, "%s%s/banyan-%s.so", program, places[i], name);
        if (access(out, R_OK) == 0)
            return true;
    }
    return false;
}

enum common_code worker_module_open(const char *path, const char *symbol, const void **out,
                                    struct common_error *err)
{
    char absolute[4096]; // dlopen looks in the system's directories for a name without a slash
    if (!strchr(path, '/') && snprintf(absolute, sizeof absolute, "./%s", path) < (int)sizeof absolute)
        path = absolute;
    void *module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const char *reason = module ? NULL : dlerror();
    if (!module)
        return common_error_set(err, COMMON_FAILED_PRECONDITION, "cannot load the module: %.200s",
                                reason ? reason : path);
    const void *found = dlsym(module, symbol);
    if (!found) {
        dlclose(module);
        return common_error_set(err, COMMON_FAILED_PRECONDITION, "%.200s does not export %.40s", path,
                                symbol);
    }
    *out = found;
    // cppcheck-suppress resourceLeak ; it stays
    return COMMON_OK;
}
