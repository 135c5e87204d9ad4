// SPDX-License-Identifier: Apache-2.0
// A device module for lists_test.py and doctor_test.py, which finds no device. Why: what
// BANYAN_TEST_NO_DEVICE says, byte for byte, as of a driver that is there and too old.
#include <stdio.h>
#include <stdlib.h>

#include "kernels/device.h"

static uint32_t count(struct common_error *err)
{
    const char *why = getenv("BANYAN_TEST_NO_DEVICE");
    err->code = COMMON_FAILED_PRECONDITION;
    snprintf(err->message, sizeof err->message, "%s", why ? why : "there is none");
    return 0;
}

__attribute__((visibility("default"))) extern const struct kernels_device_ops kernels_device_module_2;
const struct kernels_device_ops kernels_device_module_2 = {
    .abi = KERNELS_DEVICE_ABI, .size = sizeof(struct kernels_device_ops), .name = "cuda", .count = count};
