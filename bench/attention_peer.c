// SPDX-License-Identifier: Apache-2.0
#include "bench/attention_peer.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct attention_peers {
    pid_t pid;
    FILE *to, *from;
    char dir[64];
    char line[1024];
    bool gone;
};

static const char *const files[] = {"pool.bin", "q.bin", "out.bin"};

static void file_name(const struct attention_peers *peers, const char *file, char *out, size_t len)
{
    snprintf(out, len, "%s/%s", peers->dir, file);
}

struct attention_peers *attention_peers_start(const char *python)
{
    struct attention_peers *peers = calloc(1, sizeof *peers);
    int to[2] = {-1, -1}, from[2] = {-1, -1};
    if (!peers)
        return NULL;
    strcpy(peers->dir, "/tmp/attention.XXXXXX");
    bool ok = mkdtemp(peers->dir) && !pipe(to) && !pipe(from);
    if (ok) {
        signal(SIGPIPE, SIG_IGN); // write reports a dead process
        peers->pid = fork();
        ok = peers->pid >= 0;
    }
    if (ok && peers->pid == 0) {
        dup2(to[0], 0);
        dup2(from[1], 1);
        close(to[1]);
        close(from[0]);
        execlp(python, python, BENCH_SOURCE_DIR "/attention_peers.py", peers->dir, (char *)NULL);
        fprintf(stderr, "attention: cannot run %s: %s\n", python, strerror(errno));
        _exit(127);
    }
    if (ok) {
        close(to[0]);
        close(from[1]);
        peers->to = fdopen(to[1], "w");
        peers->from = fdopen(from[0], "r");
        return peers;
    }
    fprintf(stderr, "attention: cannot start the peers: %s\n", strerror(errno));
    free(peers);
    return NULL;
}

// Sends a line and waits for one that begins with `answer`. Returns what follows it, NULL on failure.
static const char *ask(struct attention_peers *peers, const char *answer, const char *line)
{
    size_t len = strlen(answer);
    if (peers->gone)
        return NULL;
    if (fputs(line, peers->to) < 0 || fflush(peers->to) ||
        !fgets(peers->line, sizeof peers->line, peers->from)) {
        fprintf(stderr, "attention: the process of the peers has ended; going on without\n");
        peers->gone = true;
        return NULL;
    }
    peers->line[strcspn(peers->line, "\n")] = 0;
    if (strncmp(peers->line, answer, len)) {
        fprintf(stderr, "attention: peers: %s\n", peers->line);
        return NULL;
    }
    return peers->line + len;
}

static bool write_file(const struct attention_peers *peers, const char *name, const void *data, size_t bytes)
{
    char path[128];
    file_name(peers, name, path, sizeof path);
    FILE *file = fopen(path, "wb");
    bool ok = file && fwrite(data, 1, bytes, file) == bytes;
    if (file && fclose(file))
        ok = false;
    if (!ok)
        fprintf(stderr, "attention: cannot write %s: %s\n", path, strerror(errno));
    return ok;
}

uint32_t attention_peers_setup(struct attention_peers *peers, const struct attention_data *data,
                               uint32_t threads, struct attention_peer *out)
{
    const struct attention_shape *s = &data->shape;
    char line[256];
    uint32_t n = 0;
    if (!write_file(peers, "pool.bin", data->pool, 2 * ATTENTION_POOL * kernels_kv_bytes(s->kv)) ||
        !write_file(peers, "q.bin", data->q,
                    (uint64_t)s->rows * s->kv_heads * s->group * s->dim * sizeof(float)))
        return 0;
    snprintf(line, sizeof line, "setup %s %u %u %u %u %u %u %u %llu\n", attention_kv_name(s->kv), s->context,
             s->kv_heads, s->group, s->rows, s->dim, threads, ATTENTION_CHUNK,
             (unsigned long long)ATTENTION_POOL);
    const char *at = ask(peers, "peers", line);
    while (at && n < ATTENTION_PEERS_MOST && sscanf(at, " %31[^= ]=%31s", out[n].name, out[n].version) == 2) {
        at = strchr(at + 1, ' ');
        n++;
    }
    return n;
}

// Its threads spin after their work, for longer than a sample of ours takes: returns when they rest, or after
// two seconds.
static void settle(const struct attention_peers *peers)
{
    clockid_t clock;
    struct timespec now, before = {0};
    if (peers->gone || clock_getcpuclockid(peers->pid, &clock))
        return;
    for (int i = 0; i < 400 && !clock_gettime(clock, &now); i++) {
        int64_t used = (now.tv_sec - before.tv_sec) * INT64_C(1000000000) + now.tv_nsec - before.tv_nsec;
        if (i > 0 && used < 100000)
            return;
        before = now;
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
}

uint64_t attention_peers_run(struct attention_peers *peers, const struct attention_peer *peer)
{
    char line[64];
    snprintf(line, sizeof line, "run %s\n", peer->name);
    const char *ns = ask(peers, "ns ", line);
    settle(peers);
    return ns ? strtoull(ns, NULL, 10) : 0;
}

double attention_peers_compare(struct attention_peers *peers, const struct attention_peer *peer,
                               const struct attention_data *data, const float *o)
{
    const struct attention_shape *s = &data->shape;
    uint64_t n = (uint64_t)s->rows * s->kv_heads * s->group * s->dim;
    char line[64], path[128];
    double largest = 0, difference = 0;
    snprintf(line, sizeof line, "out %s\n", peer->name);
    if (!ask(peers, "ok", line))
        return NAN;
    file_name(peers, "out.bin", path, sizeof path);
    FILE *file = fopen(path, "rb");
    float *theirs = malloc(n * sizeof *theirs);
    bool ok = file && theirs && fread(theirs, sizeof *theirs, n, file) == n;
    for (uint64_t i = 0; ok && i < n; i++) {
        double d = fabs((double)theirs[i] - o[i]);
        largest = fmax(largest, fabs((double)o[i]));
        if (!(d <= difference))
            difference = d;
    }
    if (file)
        fclose(file);
    free(theirs);
    return ok ? difference / largest : NAN;
}

void attention_peers_stop(struct attention_peers *peers)
{
    char path[128];
    if (!peers)
        return;
    fclose(peers->to); // its end of input
    fclose(peers->from);
    waitpid(peers->pid, NULL, 0);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        file_name(peers, files[i], path, sizeof path);
        unlink(path);
    }
    rmdir(peers->dir);
    free(peers);
}
