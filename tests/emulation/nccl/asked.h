// SPDX-License-Identifier: Apache-2.0
// What a process has asked the emulated NCCL for, so that a test can look: found by name in
// libbanyan-emulated-nccl.so. Counts since the process began.
#ifndef TESTS_EMULATION_NCCL_ASKED_H
#define TESTS_EMULATION_NCCL_ASKED_H

struct emulated_nccl_asked_of {
    unsigned communicators;
    unsigned clustered; // communicators whose kernels would be launched as clusters of blocks
    unsigned operations;
    unsigned late_operations; // on streams that have not the highest priority
};

#ifdef __cplusplus
extern "C" {
#endif
void emulated_nccl_asked(struct emulated_nccl_asked_of *out);
#ifdef __cplusplus
}
#endif

#endif
