// SPDX-License-Identifier: Apache-2.0
// What an operation costs, counted: the same script against real daemons on unix sockets, again and again,
// until all buffers are there and all lists are long enough. Each of the processes' numbers is held to its
// bound in tests/cost/bounds.
//
//     cost_test COUNT.SO BOUNDS [--print]
//
// A number is the least of some rounds, an operation: what comes by itself, such as beats and timers, and
// what load makes of a burst, is in some of the rounds alone. --print shows what was counted, as lines of
// BOUNDS, and holds it to nothing.
#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "bench/service.h"
#include "tests/cost/count.h"
#include "tests/harness/cluster.h"

enum { ROUNDS = 6, WARM_UP = 2, WORKERS = 4, SESSIONS = 64, LARGE_SESSIONS = 8, CHUNK = 256, CYCLE = 16 };
enum { ATTACHED = 16384 }; // tokens of 4 KiB: 64 MiB

enum measure { CALLS, MEMORY, SWITCHES, FAULTS, ALLOCATIONS, COPIED, WIPED, MESSAGES, MEASURES };
static const char *const measure_names[MEASURES] = {"system calls",
                                                    "system calls for memory",
                                                    "voluntary context switches",
                                                    "page faults",
                                                    "calls of the allocator",
                                                    "bytes copied",
                                                    "bytes wiped",
                                                    "messages"};

enum who { COORDINATOR, WORKER, CLIENT, WHOS };
static const char *const who_names[WHOS] = {"coordinator", "worker", "client"};

typedef double numbers[MEASURES];

static const char *bounds_path;
static bool prints;

#define OK(call)                                                                                             \
    do {                                                                                                     \
        if ((call) != BANYAN_OK)                                                                             \
            fail_msg("%s: %s", #call, error.message);                                                        \
    } while (0)

static banyan_error error;

// ---- a process ----------------------------------------------------------------------------------

static uint64_t voluntary_switches(int pid)
{
    char path[300], line[128];
    uint64_t all = 0, n;
    snprintf(path, sizeof path, "/proc/%d/task", pid);
    DIR *folder = opendir(path);
    assert_non_null(folder);
    for (struct dirent *entry; (entry = readdir(folder));) {
        snprintf(path, sizeof path, "/proc/%d/task/%s/status", pid, entry->d_name);
        FILE *file = entry->d_name[0] == '.' ? NULL : fopen(path, "re");
        while (file && fgets(line, sizeof line, file))
            all += sscanf(line, "voluntary_ctxt_switches: %lu", &n) == 1 ? n : 0;
        if (file)
            fclose(file);
    }
    closedir(folder);
    return all;
}

static uint64_t page_faults(int pid)
{
    char path[64], text[1024] = "";
    uint64_t minor = 0, major = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "re");
    assert_non_null(file);
    assert_non_null(fgets(text, sizeof text, file));
    fclose(file);
    const char *after = strrchr(text, ')');
    assert_non_null(after);
    assert_int_equal(sscanf(after, ") %*c %*d %*d %*d %*d %*d %*u %lu %*u %lu", &minor, &major), 2);
    return minor + major;
}

struct process {
    int pid;
    const struct cost_counts *counts;
};

static void process_open(struct process *process, int pid)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%d", getenv(COST_FOLDER), pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        fail_msg("%s is not there: was the library preloaded?", path);
    void *memory = mmap(NULL, sizeof *process->counts, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    assert_true(memory != MAP_FAILED);
    *process = (struct process){pid, memory};
}

static void process_look(const struct process *process, numbers out)
{
    const struct cost_counts counts = *process->counts; // before what this test does to look
    out[CALLS] = (double)counts.calls;
    out[MEMORY] = (double)counts.memory;
    out[ALLOCATIONS] = (double)counts.allocations;
    out[COPIED] = (double)counts.copied;
    out[WIPED] = (double)counts.wiped;
    out[MESSAGES] = (double)counts.messages;
    out[SWITCHES] = (double)voluntary_switches(process->pid);
    out[FAULTS] = (double)page_faults(process->pid);
}

// ---- the script ---------------------------------------------------------------------------------

struct script {
    struct harness_cluster *cluster;
    banyan_client *client;
    uint32_t workers, n_sessions;
    banyan_session *sessions[SESSIONS];
    struct service_step steps[SESSIONS];
    banyan_item items[SESSIONS];
    uint64_t position, calls;
    void *rows; // of an attach: K and V
};

struct operation {
    const char *name;
    uint32_t workers, sessions, n; // n: of a round
    const struct service_geometry *geometry;
    uint32_t chunk_tokens;
    uint64_t tokens;
    void (*run)(struct script *script);
};

static void attend(struct script *script)
{
    OK(banyan_attend(script->client, script->items, script->n_sessions, 0, NULL, &error));
    for (uint32_t i = 0; i < script->n_sessions; i++)
        assert_int_equal(script->items[i].code, BANYAN_OK);
}

// Over what is there.
static void run_step(struct script *script)
{
    for (uint32_t i = 0; i < script->n_sessions; i++) {
        script->items[i] = service_item(script->sessions[i], &script->steps[i], script->position - 1);
        script->items[i].k = script->items[i].v = NULL;
    }
    attend(script);
}

// Rows of their own at few positions, as bench/sessions has them.
static void run_rewrite(struct script *script)
{
    for (uint32_t i = 0; i < script->n_sessions; i++)
        script->items[i] =
            service_item(script->sessions[i], &script->steps[i], script->position + script->calls % CYCLE);
    attend(script);
    script->calls++;
}

static void run_append(struct script *script)
{
    for (uint32_t i = 0; i < script->n_sessions; i++)
        script->items[i] = service_item(script->sessions[i], &script->steps[i], script->position);
    attend(script);
    script->position++;
}

static banyan_session *make(struct script *script)
{
    const struct service_geometry *g = &service_large;
    const banyan_spec spec = {.layers = 1,
                              .q_heads = g->q_heads,
                              .kv_heads = g->kv_heads,
                              .k_dim = g->dim,
                              .v_dim = g->dim,
                              .kv_type = BANYAN_BF16,
                              .members = 1};
    banyan_session *session;
    OK(banyan_session_create(script->client, &spec, NULL, &session, &error));
    return session;
}

static void run_attach(struct script *script)
{
    banyan_session *session = make(script);
    OK(banyan_attach(session, 0, 0, ATTACHED, script->rows, script->rows, &error));
    OK(banyan_commit(session, 0, 0, ATTACHED, &error));
    OK(banyan_session_delete(session, &error));
    banyan_session_close(session);
}

static void run_session(struct script *script)
{
    banyan_session *session = make(script);
    OK(banyan_session_delete(session, &error));
    banyan_session_close(session);
}

static void script_begin(struct script *script, const struct operation *operation)
{
    *script = (struct script){.workers = operation->workers,
                              .n_sessions = operation->sessions,
                              .position = operation->tokens};
    script->cluster =
        harness_cluster_start(&(struct harness_options){.workers = operation->workers, .memory = "1G"});
    assert_non_null(script->cluster);
    OK(banyan_connect(harness_cluster_endpoint(script->cluster, "unix"), NULL, &script->client, &error));
    for (uint32_t i = 0; i < operation->sessions; i++) {
        script->sessions[i] = service_session(script->client, operation->geometry, operation->workers,
                                              operation->chunk_tokens, operation->tokens);
        assert_non_null(script->sessions[i]);
        assert_true(service_step_init(&script->steps[i], operation->geometry));
    }
    if (operation->run == run_attach) {
        script->rows = malloc(ATTACHED * service_kv_row_bytes(&service_large));
        assert_non_null(script->rows);
        memset(script->rows, 0x3f, ATTACHED * service_kv_row_bytes(&service_large));
    }
}

static void script_end(struct script *script)
{
    for (uint32_t i = 0; i < script->n_sessions; i++) {
        banyan_session_close(script->sessions[i]);
        service_step_free(&script->steps[i]);
    }
    free(script->rows);
    banyan_disconnect(script->client);
    assert_int_equal(harness_cluster_stop(script->cluster), 0);
}

// ---- counting -----------------------------------------------------------------------------------

struct processes {
    struct process all[2 + WORKERS]; // client, coordinator, workers
    uint32_t n;
};

static enum who who_of(uint32_t nth)
{
    return nth == 0 ? CLIENT : nth == 1 ? COORDINATOR : WORKER;
}

static void count_round(const struct processes *processes, struct script *script,
                        void (*run)(struct script *), uint32_t n, numbers out[])
{
    numbers before[2 + WORKERS], after;
    for (uint32_t i = processes->n; i-- > 0;) // this process last
        process_look(&processes->all[i], before[i]);
    for (uint32_t i = 0; i < n; i++)
        run(script);
    for (uint32_t i = 0; i < processes->n; i++) {
        process_look(&processes->all[i], after);
        for (int m = 0; m < MEASURES; m++)
            out[i][m] = (after[m] - before[i][m]) / n;
    }
}

static void run_nothing(struct script *script)
{
    (void)script;
}

// What it costs this process to look.
static void take_looks_off(const struct processes *processes, uint32_t n, numbers client)
{
    numbers none[2 + WORKERS];
    count_round(processes, NULL, run_nothing, 1, none);
    for (int m = 0; m < MEASURES; m++) {
        client[m] -= none[0][m] / n;
        client[m] = client[m] < 0 ? 0 : client[m];
    }
}

// Of workers: of the one that has most.
static void count_operation(const struct operation *operation, numbers out[WHOS])
{
    struct script script;
    struct processes processes = {.n = 2 + operation->workers};
    numbers least[2 + WORKERS], round[2 + WORKERS];
    script_begin(&script, operation);
    process_open(&processes.all[0], getpid());
    process_open(&processes.all[1], harness_cluster_pid(script.cluster, HARNESS_COORDINATOR));
    for (uint32_t w = 0; w < operation->workers; w++)
        process_open(&processes.all[2 + w], harness_cluster_pid(script.cluster, w));
    for (int r = -WARM_UP; r < ROUNDS; r++) {
        count_round(&processes, &script, operation->run, operation->n, round);
        take_looks_off(&processes, operation->n, round[0]);
        for (uint32_t i = 0; i < processes.n; i++)
            for (int m = 0; m < MEASURES; m++)
                least[i][m] = r <= 0 || round[i][m] < least[i][m] ? round[i][m] : least[i][m];
    }
    memset(out, 0, WHOS * sizeof *out);
    for (uint32_t i = 0; i < processes.n; i++)
        for (int m = 0; m < MEASURES; m++)
            out[who_of(i)][m] = least[i][m] > out[who_of(i)][m] ? least[i][m] : out[who_of(i)][m];
    script_end(&script);
}

// ---- bounds -------------------------------------------------------------------------------------

// "12", "0.5", "64K", "64M"
static bool take_number(char **at, double *out)
{
    char *end;
    *out = strtod(*at, &end);
    if (end == *at)
        return false;
    *out *= *end == 'K' ? 1024 : *end == 'M' ? 1048576 : 1;
    *at = end + (*end == 'K' || *end == 'M');
    return true;
}

// The line of an operation and a process. False: there is none.
static bool find_bounds(const char *operation, const char *who, numbers out)
{
    char line[512], names[2][32];
    bool found = false;
    FILE *file = fopen(bounds_path, "re");
    assert_non_null(file);
    while (!found && fgets(line, sizeof line, file)) {
        int len = 0;
        if (sscanf(line, "%31s %31s%n", names[0], names[1], &len) != 2 || strcmp(names[0], operation) != 0 ||
            strcmp(names[1], who) != 0)
            continue;
        char *at = line + len;
        for (int m = 0; m < MEASURES; m++)
            if (!take_number(&at, &out[m]))
                fail_msg("%s: %s %s: %d numbers, and a sentence", bounds_path, operation, who, MEASURES);
        found = strlen(at) > 8; // why
    }
    fclose(file);
    return found;
}

static void print_line(const char *operation, const char *who, const numbers counted)
{
    printf("%-8s %-12s", operation, who);
    for (int m = 0; m < MEASURES; m++)
        printf(" %10.2f", counted[m]);
    printf("\n");
}

static void a_cost_is_within_its_bounds(void **state)
{
    const struct operation *operation = *state;
    numbers counted[WHOS], bound;
    int above = 0;
    count_operation(operation, counted);
    for (enum who who = 0; who < WHOS; who++) {
        if (prints) {
            print_line(operation->name, who_names[who], counted[who]);
            continue;
        }
        if (!find_bounds(operation->name, who_names[who], bound))
            fail_msg("%s has no line for %s %s, or no sentence in it", bounds_path, operation->name,
                     who_names[who]);
        for (int m = 0; m < MEASURES; m++)
            if (counted[who][m] > bound[m]) {
                above++;
                fprintf(stderr, "%s, %s: %.2f %s, at most %g\n", operation->name, who_names[who],
                        counted[who][m], measure_names[m], bound[m]);
            }
    }
    if (above > 0)
        fail_msg("%d costs are above their bounds", above);
}

// ---- the whole ----------------------------------------------------------------------------------

// Once more, with what counts in this process, and in all that it starts.
static void preload(char **argv)
{
    char folder[] = "/tmp/banyan-cost-XXXXXX";
    if (getenv(COST_FOLDER))
        return;
    // Kernels differ between machines: one that all have.
    if (!mkdtemp(folder) || setenv("BANYAN_KERNEL", "portable", 1) != 0 ||
        setenv(COST_FOLDER, folder, 1) != 0 || setenv("LD_PRELOAD", argv[1], 1) != 0)
        abort();
    execv("/proc/self/exe", argv);
    perror("cost_test");
    exit(1);
}

static void remove_counts(void)
{
    char path[4096];
    const char *name = getenv(COST_FOLDER);
    DIR *folder = opendir(name);
    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        snprintf(path, sizeof path, "%s/%s", name, entry->d_name);
        if (entry->d_name[0] != '.')
            unlink(path);
    }
    if (folder)
        closedir(folder);
    rmdir(name);
}

int main(int argc, char **argv)
{
    static const struct operation step = {"step", 1, 1, 100, &service_large, CHUNK, 16, run_step},
                                  frame = {"frame", 1, SESSIONS, 40, &service_small, CHUNK, 16, run_step},
                                  tree = {"tree",         WORKERS, LARGE_SESSIONS, 40,
                                          &service_large, 16,      16 * WORKERS,   run_rewrite},
                                  append = {"append", 1, 1, CHUNK, &service_large, CHUNK, 16, run_append},
                                  attach = {"attach", 1, 0, 2, NULL, 0, 0, run_attach},
                                  session = {"session", 1, 0, 50, NULL, 0, 0, run_session};
    if (argc < 3) {
        fprintf(stderr, "usage: cost_test COUNT.SO BOUNDS [--print]\n");
        return 2;
    }
    preload(argv);
    bounds_path = argv[2];
    prints = argc > 3;
    const struct operation *all[] = {&step, &frame, &tree, &append, &attach, &session};
    struct CMUnitTest tests[sizeof all / sizeof *all] = {0};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        tests[i] = (struct CMUnitTest){.name = all[i]->name,
                                       .test_func = a_cost_is_within_its_bounds,
                                       .initial_state = (void *)all[i]};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    remove_counts();
    return failed;
}
