// SPDX-License-Identifier: Apache-2.0
// Daemons on this machine. A shell starts them and waits for its standard input to end, which is a pipe that
// this process holds: it ends with the process, whatever ends it; then the shell stops them and removes the
// folder. They are in a session of their own: Ctrl-C in the terminal reaches llama.cpp alone.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "client/llama/cluster.h"

extern char **environ;

// $1 folder, $2 folder of programs, $3 workers, $4 threads, $5 memory.
static const char keeper[] =
    "d=$1 b=$2 n=$3\n"
    "exec 3<&0 0</dev/null\n"
    "cd \"$d\" || exit 1\n"
    "\"$b/banyan-coordinator\" --listen=\"unix://$d/c.sock\" --store=\"$d/store.db\" "
    "--secret-file=\"$d/secret\" "
    "--ready-file=\"$d/c.json\" 3<&- >c.log 2>&1 & p=$!\n"
    "i=0\n"
    "while [ ! -e c.json ] && kill -0 $p 2>/dev/null && [ $i -lt 600 ]; do sleep 0.05; i=$((i+1)); done\n"
    "i=0\n"
    "while [ $i -lt \"$n\" ]; do\n"
    "\"$b/banyan-worker\" --name=worker-$i --coordinator=\"unix://$d/c.sock\" --secret-file=\"$d/secret\" "
    "--memory=\"$5\" --threads=\"$4\" "
    "--listen=\"unix://$d/w$i.sock\" --edge-listen=\"unix://$d/e$i.sock\" --device=cpu "
    "--ready-file=\"$d/w$i.json\" 3<&- >w$i.log 2>&1 &\n"
    "p=\"$p $!\" i=$((i+1))\n"
    "done\n"
    "cat <&3 >/dev/null\n"
    "kill $p 2>/dev/null\n"
    "( sleep 10; kill -9 $p 2>/dev/null ) & k=$!\n"
    "wait $p\n"
    "kill $k 2>/dev/null\n"
    "cd / && rm -rf \"$d\"\n";

static bool has_programs(const char *folder)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/banyan-coordinator", folder);
    if (access(path, X_OK) != 0)
        return false;
    snprintf(path, sizeof path, "%s/banyan-worker", folder);
    return access(path, X_OK) == 0;
}

// Beside this library (its folder, ../bin), or in PATH.
static bool find_programs(char *folder, size_t bytes)
{
    Dl_info info;
    static const char *const beside[] = {"", "/../bin", "/../../bin"};
    if (getenv("BANYAN_BIN")) {
        snprintf(folder, bytes, "%s", getenv("BANYAN_BIN"));
        return has_programs(folder);
    }
    if (dladdr((const void *)keeper, &info) && info.dli_fname) {
        char *own = realpath(info.dli_fname, NULL), *end = own ? strrchr(own, '/') : NULL;
        if (end)
            *end = '\0';
        for (size_t i = 0; end && i < sizeof beside / sizeof *beside; i++) {
            snprintf(folder, bytes, "%s%s", own, beside[i]);
            if (has_programs(folder)) {
                free(own);
                return true;
            }
        }
        free(own);
    }
    const char *path = getenv("PATH");
    while (path && *path) {
        size_t len = strcspn(path, ":");
        snprintf(folder, bytes, "%.*s", (int)len, path);
        if (len > 0 && has_programs(folder))
            return true;
        path += len + (path[len] == ':');
    }
    return false;
}

static uint64_t available_memory(void)
{
    FILE *file = fopen("/proc/meminfo", "r");
    char line[256];
    unsigned long long kib = 0;
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1)
            break;
    if (file)
        fclose(file);
    return kib * 1024;
}

// The end of a log, on one line.
static void tail_of(const char *folder, const char *name, char *out, size_t bytes)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/%s.log", folder, name);
    FILE *file = fopen(path, "r");
    size_t n = 0;
    if (file && fseek(file, -(long)bytes + 1, SEEK_END) != 0)
        rewind(file);
    if (file) {
        n = fread(out, 1, bytes - 1, file);
        fclose(file);
    }
    out[n] = '\0';
    for (size_t i = 0; i < n; i++)
        if (out[i] == '\n')
            out[i] = ' ';
}

static bool wait_ready(const char *folder, const char *name, pid_t keeper_pid, char *why, size_t why_bytes)
{
    char path[4200], tail[200];
    snprintf(path, sizeof path, "%s/%s.json", folder, name);
    for (int i = 0; i < 6000; i++) { // a minute
        if (access(path, F_OK) == 0)
            return true;
        if (waitpid(keeper_pid, NULL, WNOHANG) == keeper_pid)
            break;
        nanosleep(&(struct timespec){0, 10000000}, NULL);
    }
    tail_of(folder, name, tail, sizeof tail);
    snprintf(why, why_bytes, "the local cluster's %s is not ready: %s",
             name[0] == 'c' ? "coordinator" : "worker", tail);
    return false;
}

static pid_t start_keeper(char *const arguments[], int *held)
{
    int ends[2];
    pid_t pid = -1;
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    if (pipe2(ends, O_CLOEXEC) != 0)
        return -1;
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
    posix_spawn_file_actions_adddup2(&actions, ends[0], 0);
    posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID);
    errno = posix_spawn(&pid, "/bin/sh", &actions, &attributes, arguments, environ);
    if (errno)
        pid = -1;
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    close(ends[0]);
    if (pid < 0)
        close(ends[1]);
    *held = ends[1]; // open until this process ends
    return pid;
}

const char *local_start(const struct settings *settings, char *why, size_t why_bytes)
{
    static char endpoint[4200];
    char folder[4096], programs[4096], n[16], threads[16], memory[32];
    const char *tmp = getenv("TMPDIR");
    cpu_set_t cores;
    snprintf(folder, sizeof folder, "%s/banyan-llama-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (strlen(folder) > 90) {
        snprintf(why, why_bytes, "%s is too long a name for unix sockets: set TMPDIR to a shorter one",
                 folder);
        return NULL;
    }
    if (!find_programs(programs, sizeof programs)) {
        snprintf(why, why_bytes,
                 "banyan-coordinator and banyan-worker were found neither beside libggml-banyan.so nor in "
                 "PATH: set BANYAN_BIN "
                 "to their folder, or BANYAN_ENDPOINT to a running cluster's");
        return NULL;
    }
    if (!mkdtemp(folder)) {
        snprintf(why, why_bytes, "%s: %s", folder, strerror(errno));
        return NULL;
    }
    unsigned n_cores = sched_getaffinity(0, sizeof cores, &cores) == 0 ? (unsigned)CPU_COUNT(&cores) : 1;
    unsigned each = settings->local_threads ? settings->local_threads : n_cores / settings->local;
    snprintf(n, sizeof n, "%u", settings->local);
    snprintf(threads, sizeof threads, "%u", each ? each : 1);
    snprintf(memory, sizeof memory, "%lluM",
             (unsigned long long)(available_memory() / 5 * 4 / settings->local >> 20));
    char *arguments[] = {"sh", "-c",    (char *)keeper,
                         "sh", folder,  programs,
                         n,    threads, settings->local_memory ? (char *)settings->local_memory : memory,
                         NULL};
    int held;
    pid_t pid = start_keeper(arguments, &held);
    if (pid < 0) {
        snprintf(why, why_bytes, "/bin/sh cannot be started: %s", strerror(errno));
        rmdir(folder);
        return NULL;
    }
    bool ready = wait_ready(folder, "c", pid, why, why_bytes);
    for (unsigned i = 0; ready && i < settings->local; i++) {
        char name[16];
        snprintf(name, sizeof name, "w%u", i);
        ready = wait_ready(folder, name, pid, why, why_bytes);
    }
    if (!ready) {
        close(held); // the keeper ends what it has started
        return NULL;
    }
    snprintf(endpoint, sizeof endpoint, "unix://%s/c.sock", folder);
    return endpoint;
}
