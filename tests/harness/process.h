// SPDX-License-Identifier: Apache-2.0
// Child processes of tests and benchmarks: started by fork and exec, killed when their parent dies, always
// reaped.
#ifndef TESTS_HARNESS_PROCESS_H
#define TESTS_HARNESS_PROCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

// ${BANYAN_BUILD_DIR}/bin/NAME, or the same beside the calling program where the variable is not set. False
// when it does not fit.
bool harness_program_path(const char *name, char *out, size_t len);

// Starts argv[0] with stdin from /dev/null and stdout and stderr appended to log_path (NULL: inherited). The
// child is killed when the calling thread ends: start from a thread that outlives it. -1 with a line on
// stderr when it cannot be started.
pid_t harness_process_start(char *const argv[], const char *log_path);

// Waits until the process has ended, at most timeout_ns. True with its wait status in *status (may be NULL),
// and the process reaped.
bool harness_process_wait(pid_t pid, uint64_t timeout_ns, int *status);

struct harness_output {
    int exit_code;   // 128 + signal when it was killed by one
    char *out, *err; // NUL-terminated
    size_t out_len, err_len;
};

// Runs a program to its end and collects what it says. `env`: NULL, or "NAME=value" strings to add, ending
// with NULL. A program that is not done after timeout_ns is killed: exit code 137. False when it cannot be
// started. Free with harness_output_free.
bool harness_run(char *const argv[], char *const env[], uint64_t timeout_ns, struct harness_output *out);
void harness_output_free(struct harness_output *out);

#endif
