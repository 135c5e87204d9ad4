// SPDX-License-Identifier: Apache-2.0
// A real cluster for tests and benchmarks: one banyan-coordinator and some banyan-worker processes in a
// folder of their own, with their own secret, ports chosen by the system, on loopback and unix sockets.
// Everything is killed and reaped by stop, at exit of the program, and when the program is killed. Not
// thread-safe: use it from one thread, the one that started it.
#ifndef TESTS_HARNESS_CLUSTER_H
#define TESTS_HARNESS_CLUSTER_H

#include <stdbool.h>
#include <stdint.h>

#define HARNESS_COORDINATOR UINT32_MAX       // as a number of a process
#define HARNESS_OLD         (UINT32_MAX - 1) // a coordinator that was left, and may still be stopping
#define HARNESS_WORKERS_MAX 64

struct harness_options {
    uint32_t workers;
    const char *memory;                  // of each worker; NULL: "256M"
    uint32_t threads;                    // of each worker; 0: 1
    const char *token;                   // NULL: none; else clients must present it
    const char *const *hosts;            // NULL: all the same; else [workers] names for --host
    const char *const *coordinator_args; // NULL, or more arguments, ending with NULL
    // Likewise, for every worker. Without --bandwidth among them it says 8 GB/s (BANYAN_TEST_BANDWIDTH, where
    // that is set): what a machine measures of itself would decide who gets which chunks.
    const char *const *worker_args;
    bool measured;                       // workers measure themselves, as those of a user do
    const char *const *const *each_args; // NULL, or [workers] further ones for each; NULL entries: none
    // NULL, or a launcher (mpirun) with its options, ending with NULL: it starts the workers together, as one
    // job described in a file that --app names. Its program is looked for in PATH.
    const char *const *launcher;
    bool edges_tcp;  // edges over tcp instead of unix sockets
    bool public_nng; // workers' public endpoint nng+tcp instead of tcp
    // NULL, or a folder with ca.pem, and coordinator.pem, coordinator.key, worker.pem, worker.key of that
    // authority for localhost and 127.0.0.1: then all listens at nng+tls:// and tls:// in the place of tcp,
    // and is dialled there.
    const char *tls;
};

// One more worker, beside what harness_options says of all. Strings and lists are borrowed until stop.
struct harness_worker {
    const char *host;          // NULL: as --host's default
    const char *coordinator;   // NULL: its unix socket
    const char *edge, *public; // endpoints; NULL: as the options say
    const char *const
        *before; // NULL, or a command with options, ending with NULL, that becomes the worker (nsenter)
    const char *const *args; // NULL, or more arguments, ending with NULL
};

struct harness_cluster;

// Returns when all processes have written their ready files. NULL with the reason (and the logs) on stderr.
// options NULL: one worker.
struct harness_cluster *harness_cluster_start(const struct harness_options *options);

// SIGTERM to all, then waits. Returns the number of problems, each reported on stderr: a daemon that did not
// stop within 10 s or ended with a code other than 0 (or by a signal that did not come from here), and each
// ERROR line in a log that was not allowed. Removes the folder when there were none. NULL is allowed.
int harness_cluster_stop(struct harness_cluster *cluster);

// An ERROR line that contains this text is expected. The text is kept, not copied.
void harness_cluster_allow_error(struct harness_cluster *cluster, const char *text);

// Of the coordinator. transport: "nng+tcp", "tcp" or "unix"; with `tls` "nng+tls", "tls" or "unix".
const char *harness_cluster_endpoint(const struct harness_cluster *cluster, const char *transport);
const char *harness_cluster_worker_name(const struct harness_cluster *cluster,
                                        uint32_t worker); // "w0", "w1", …
const char *harness_cluster_dir(const struct harness_cluster *cluster);
const char *harness_cluster_secret_file(const struct harness_cluster *cluster);
const char *harness_cluster_token_file(const struct harness_cluster *cluster); // NULL where there is no token
uint32_t harness_cluster_workers(const struct harness_cluster *cluster);
int harness_cluster_pid(const struct harness_cluster *cluster, uint32_t who); // 0 when it does not run

// Sends a signal. SIGKILL and SIGTERM also wait until the process is gone, and its end is then no problem.
void harness_cluster_signal(struct harness_cluster *cluster, uint32_t who, int sig);

// Whether a process has ended by itself, and with which code (128 + signal when it was killed by one). Its
// end is then no problem. False while it runs.
bool harness_cluster_ended(struct harness_cluster *cluster, uint32_t who, int *code);

// Starts a process again that was killed, or has ended, at the same endpoints, and waits until it is ready.
bool harness_cluster_restart(struct harness_cluster *cluster, uint32_t who);
// The same without waiting: it may have to wait for another one that must be started, too.
bool harness_cluster_launch(struct harness_cluster *cluster, uint32_t who);

// The coordinator's process is HARNESS_OLD from now on, until it has ended: another one may be started while
// it is there. One at a time.
void harness_cluster_leave(struct harness_cluster *cluster);
// Whether it runs, and has written its ready file since it was started.
bool harness_cluster_is_ready(const struct harness_cluster *cluster, uint32_t who);
// Starts the coordinator, unless it runs, as a supervisor does: at once, and again where it ends with code 3
// (another process has the store), until it is ready. refused: how often it did. False, with the reason on
// stderr: it ended otherwise, or not in 60 s.
bool harness_cluster_supervise(struct harness_cluster *cluster, int *refused);

// Of workers that a launcher has started: waits until their job has ended, however it does, for at most
// timeout_ns; starts it again, with all its workers, and waits until they are ready. A worker of a job that
// was signalled, or a job that ended, is no problem at stop.
bool harness_cluster_job_ended(struct harness_cluster *cluster, uint64_t timeout_ns);
bool harness_cluster_job_restart(struct harness_cluster *cluster);

// Starts one more worker and waits until it is ready. Its number, or UINT32_MAX. host NULL: the machine's.
uint32_t harness_cluster_add_worker(struct harness_cluster *cluster, const char *host);
uint32_t harness_cluster_add(struct harness_cluster *cluster, const struct harness_worker *worker);

// Everything that a process has logged so far; free it.
char *harness_cluster_log(const struct harness_cluster *cluster, uint32_t who);

#endif
