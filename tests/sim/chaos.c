// SPDX-License-Identifier: Apache-2.0
// Random faults against the whole coordinator, real workers and clients that record what was acknowledged to
// them.
// A seed decides everything: which kinds of fault there are (a few of them in each run), what the clients do,
// and in which order events run. Each seed is a process of its own, so a crash, a hang or a failed assertion
// is one seed's.
//
//   chaos_test --seeds N [--from S]     runs the seeds S (1) to S + N - 1; with --stop, until one fails
//   chaos_test --seed S                 runs one in this process and reports what it does; with --steps N and
//                                       --faults MASK, less of it (tests/sim/run finds the least that fails)
//
// What must hold, looked at whenever a call ends:
//   - a read that succeeds says the mean of exactly the values that were written below its position, and none of
//     its positions was never written;
//   - rows that a worker gives to any client with a ticket are those that were written and acknowledged;
//   - what was acknowledged is never refused for a reason that does not pass, while the processes that hold it
//     live (a killed worker takes with it what it holds);
//   - what is refused as forgotten may have been: a row sees less than any that is still to come may need;
//   - of an append that is refused for good no row is seen from then on, and other values are accepted;
//   - a partial answer declares only what no worker had at some moment of its call, and is the mean of all the rest;
//     only an item that allows one gets it;
//   - no audit calls an answer wrong (half of the seeds have audits);
//   - a snapshot has exactly what the session had at one moment, and what it is restored to, too (half of the seeds);
//   - a code is one that the contract allows; a commit of rows that a worker's memory has damaged says so.
// And at the end, when the faults have ceased: what does not need the one edge that swallows is read; every
// call has ended, every chunk has as many copies as it should; every layer ends where something ends that was
// written to it; every session whose holders lived answers and takes an append; the others do after a
// truncate to 0; what was deleted has no holder; nothing leaks.
#include "tests/sim/chaos.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/hash/hash.h"
#include "coordinator/cluster/cluster.h"
#include "coordinator/cluster/worker.h"
#include "coordinator/place/moves.h"
#include "coordinator/place/wishes.h"
#include "coordinator/state.h"
#include "tests/sim/sim_memory.h"

// Of a session's 120 tokens a step takes some 8 ms as planned: a few in a window tell.
#define PACE UINT64_C(500000)

static struct sim_cold *all_cold; // of all seeds; shared with their processes

static void choose_store(struct coordinator_options *options)
{
    options->store_path = chaos.wrong ? "another disk" : SIM_DISK_PATH;
    options->slow_after_ns = 400 * COMMON_NS_PER_MS;
    chaos_choose_audit(options);
    chaos_choose_snapshots(options);
}

// In one of three seeds sessions have windows, and forget what these have left behind; in half of these they
// are born with a floor.
static void choose_masks(uint64_t seed)
{
    uint64_t draw = common_mix64(seed);
    if (seed % 3)
        return;
    chaos.forget = 1 + draw % 24;
    for (uint32_t l = 0; l < LAYERS; l++) {
        draw = common_mix64(draw);
        uint64_t length = 3 + draw / 4 % 30;
        chaos.masks[l] = (struct sim_mask){.window = draw % 4 == 1 || draw % 4 == 2 ? length : 0,
                                           .mask_chunk = draw % 4 == 3 ? length : 0};
    }
    draw = common_mix64(draw);
    chaos.floor = draw % 2 ? draw / 2 % (TOKENS / 2) : 0;
}

// What has happened in all seeds, so that it can be seen that it does. In memory that they share.
struct happened {
    uint64_t verdicts, spreads, relieved, returned;
    uint64_t joined, copies_at_joined; // workers; chunks that they held at the end of the faults
    struct snapshots snapshots;
};
static struct happened *total;

// Of the coordinator that is there; another one begins at 0.
static void count_what_happened(void)
{
    static struct happened last;
    const struct coordinator *c = chaos.cluster->coordinator;
    if (!c)
        return;
    struct happened now = {.verdicts = c->cluster.slow_verdicts,
                           .spreads = c->sessions.spread_sessions,
                           .relieved = c->sessions.wishes->relieved,
                           .returned = c->sessions.returned_chunks};
    if (now.verdicts < last.verdicts || now.spreads < last.spreads || now.relieved < last.relieved ||
        now.returned < last.returned)
        last = (struct happened){0};
    total->verdicts += now.verdicts - last.verdicts;
    total->spreads += now.spreads - last.spreads;
    total->relieved += now.relieved - last.relieved;
    total->returned += now.returned - last.returned;
    last = now;
}

// In half of the seeds three that are there from the start. In the others four or five, and those above three
// may come later, with JOIN. Not from the dice: seeds go on as they did with three.
static uint32_t choose_workers(uint64_t seed)
{
    uint64_t draw = common_mix64(seed + UINT64_C(0x6a6f696e));
    uint32_t workers = draw % 2 ? 3 : 4 + (uint32_t)(draw / 2 % 2),
             later = (uint32_t)(draw / 4 % (workers - 2));
    chaos.n_workers = workers - later;
    chaos.faults |= later ? UINT64_C(1) << JOIN : 0;
    return workers;
}

// Those after the first n.
static void count_who_joined(uint32_t n)
{
    const struct coordinator_cluster *all = &chaos.cluster->coordinator->cluster;
    total->joined += chaos.n_workers - n;
    for (uint32_t i = 0; i < all->n_workers; i++)
        if (all->workers[i] && (uint32_t)(all->workers[i]->name[1] - '0') >= n)
            total->copies_at_joined += all->workers[i]->chunks;
}

// In half of the seeds an inventory has many pages, so that the store answers between two of them, and in
// half the store takes its time to sync. Not from the dice, either.
static size_t choose_pages(uint64_t seed)
{
    uint64_t draw = common_mix64(seed + UINT64_C(0x7061676573));
    return draw % 2 ? 1 + draw / 2 % 500 : 0;
}

static void choose_syncs(uint64_t seed)
{
    uint64_t draw = common_mix64(seed + UINT64_C(0x73796e63));
    if (draw % 2)
        sim_disk_delay(SIM_DISK_PATH, (500 * COMMON_NS_PER_US) << draw / 2 % 8);
}

static bool quota_changes(uint64_t seed, uint32_t step)
{
    return chaos.faults & UINT64_C(1) << QUOTA && common_mix64(seed ^ (uint64_t)step << 41) % 20 == 0;
}

static bool somebody_joins(uint64_t seed, uint32_t step)
{
    return chaos.faults & UINT64_C(1) << JOIN && common_mix64(seed ^ (uint64_t)step << 40) % 40 == 0;
}

static bool somebody_returns(uint64_t seed, uint32_t step)
{
    return chaos.faults & UINT64_C(1) << RETURN && common_mix64(seed ^ (uint64_t)step << 42) % 20 == 0;
}

static bool something_swallows(uint64_t seed, uint32_t step)
{
    return chaos.faults & UINT64_C(1) << SWALLOW && common_mix64(seed ^ (uint64_t)step << 44) % 20 == 0;
}

static void run(uint64_t seed)
{
    chaos.seed = seed;
    uint32_t workers = choose_workers(seed), from_the_start = chaos.n_workers;
    choose_masks(seed);
    chaos.replicas = seed / 2 % 2 ? 1 : 2 + (uint32_t)(seed / 4 % 2);
    chaos.stored = seed / 16 % 2;
    chaos.cold = chaos.stored && seed / 64 % 2;
    chaos.cluster = sim_cluster_new(
        &(struct sim_cluster_options){.workers = workers,
                                      .later = workers - chaos.n_workers,
                                      .seed = seed,
                                      .team = seed & 1,
                                      .pace = PACE,
                                      .second = true,
                                      .tune = choose_store,
                                      .store = chaos.stored,
                                      .syncs = true,
                                      .scrub_ns = chaos.stored && seed / 32 % 2 ? 10 * COMMON_NS_PER_S : 0,
                                      .inventory_bytes = choose_pages(seed)});
    choose_syncs(seed);
    sim_shuffle(true);
    chaos.delay_ns = sim_random(2) ? COMMON_NS_PER_MS : 100 * COMMON_NS_PER_US;
    sim_net_delay(10 * COMMON_NS_PER_US, chaos.delay_ns);
    for (int i = 0; i < FAULTS; i++)
        chaos.faults |= sim_random(3) ? 0 : UINT64_C(1) << i;
    chaos.faults |= UINT64_C(1) << HEAL;
    chaos.faults |= common_mix64(seed + UINT64_C(0x71756f7461)) % 4 ? 0 : UINT64_C(1) << QUOTA;
    chaos.faults |= common_mix64(seed + UINT64_C(0x72657475726e)) % 3 ? 0 : UINT64_C(1) << RETURN;
    chaos.faults |= common_mix64(seed + UINT64_C(0x7377616c6c6f77)) % 4 ? 0 : UINT64_C(1) << SWALLOW;
    chaos.faults &= chaos.faults_most;
    if (chaos.verbose)
        printf("%u workers, %u of them from the start\nfaults 0x%" PRIx64 "\n", workers, chaos.n_workers,
               chaos.faults);
    sim_cluster_start(chaos.cluster);
    sim_after_each(chaos_look_for_gone);
    chaos.clients[0] = chaos.cluster->client;
    for (chaos.n_clients = 1; chaos.n_clients < CLIENTS && sim_random(2); chaos.n_clients++)
        chaos.clients[chaos.n_clients] = sim_client_new(SIM_COORDINATOR, NULL);
    // One of a release that puts rows to the first holder of each chunk alone.
    sim_client_one_holder(chaos.clients[0], chaos.replicas > 1 && seed / 8 % 4 == 0);
    if (chaos.faults & UINT64_C(1) << SLOW)
        chaos_disturb(SLOW);
    uint64_t rate = 3 + sim_random(12), pace = COMMON_NS_PER_MS << sim_random(7);
    for (uint32_t i = 0; i < chaos.steps; i++) {
        enum fault fault = (enum fault)sim_random(FAULTS);
        if (sim_memory_may_fail && !sim_random(16))
            sim_memory_refuse(sim_random(2) ? 10u << sim_random(8) : 0);
        if (chaos.faults & UINT64_C(1) << MEMORY_FLIP && !sim_random(16)) // most find nothing that is sealed
            chaos_disturb(MEMORY_FLIP);
        if (quota_changes(seed, i))
            chaos_disturb(QUOTA);
        if (somebody_joins(seed, i))
            chaos_disturb(JOIN);
        if (somebody_returns(seed, i))
            chaos_disturb(RETURN);
        if (something_swallows(seed, i))
            chaos_disturb(SWALLOW);
        if (!sim_random(rate) && chaos.faults & UINT64_C(1) << fault)
            chaos_disturb(fault);
        else if (chaos.n_ops < OPS / 2)
            chaos_act();
        chaos_cool();
        chaos_snapshot_step();
        sim_advance(sim_random(3) ? sim_random(pace) : sim_random(pace * 20));
        chaos_check_all();
        chaos_look_for_struck();
        chaos_check_audits();
        count_what_happened();
    }
    chaos_disturb_end();
    count_who_joined(from_the_start);
    chaos_end();
    chaos_check_audits();
    chaos.trace = sim_trace();
    chaos.events = sim_events();
    total->snapshots.taken += chaos.snapshots.taken;
    total->snapshots.refused += chaos.snapshots.refused;
    total->snapshots.restored += chaos.snapshots.restored;
    total->snapshots.died += chaos.snapshots.died;
    for (uint32_t i = 1; i < chaos.n_clients; i++)
        sim_client_free(chaos.clients[i]);
    sim_cluster_free(chaos.cluster);
    struct sim_cold cold = sim_worker_cold();
    if (all_cold) {
        all_cold->evicted += cold.evicted;
        all_cold->loaded += cold.loaded;
        all_cold->lost += cold.lost;
    }
    if (chaos.verbose)
        printf("%" PRIu64 " layers left memory, %" PRIu64 " were read again\n", cold.evicted, cold.loaded);
}

// One seed in a process of its own. What it logs is shown when it fails.
static bool run_apart(uint64_t seed)
{
    FILE *said = tmpfile();
    fflush(NULL);
    pid_t child = said ? fork() : -1;
    int status = 1;
    if (child == 0) {
        dup2(fileno(said), STDERR_FILENO);
        alarm(120);
        run(seed);
        exit(0);
    }
    if (child < 0 || waitpid(child, &status, 0) != child)
        abort();
    bool ok = status == 0;
    char line[512];
    rewind(said);
    for (int n = 0; !ok && n < 40 && fgets(line, sizeof line, said); n++)
        printf("[seed %" PRIu64 "] %s", seed, line);
    fclose(said);
    if (!ok)
        printf("seed %" PRIu64 " fails (%s %d): replay it with --seed %" PRIu64 "\n", seed,
               WIFSIGNALED(status) ? "signal" : "status",
               WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status), seed);
    return ok;
}

static uint64_t number(const char *text)
{
    char *end;
    uint64_t n = strtoull(text, &end, 0);
    if (!*text || *end) {
        fprintf(stderr, "chaos_test: '%s' is not a number\n", text);
        exit(2);
    }
    return n;
}

int main(int argc, char **argv)
{
    uint64_t seeds = 200, from = 1, seed = 0, run_of = 0, failed = 0;
    bool stop = false, one = false;
    chaos.steps = STEPS;
    chaos.faults_most = UINT64_MAX;
    total = mmap(NULL, sizeof *total, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (total == MAP_FAILED)
        abort();
    for (int i = 1; i < argc; i++) {
        const char *next = i + 1 < argc ? argv[i + 1] : "";
        if (!strcmp(argv[i], "--stop")) {
            stop = true;
            continue;
        }
        if (!strcmp(argv[i], "--seed"))
            seed = number(next), one = true;
        else if (!strcmp(argv[i], "--seeds"))
            seeds = number(next);
        else if (!strcmp(argv[i], "--from"))
            from = number(next);
        else if (!strcmp(argv[i], "--steps"))
            chaos.steps = (uint32_t)number(next);
        else if (!strcmp(argv[i], "--faults"))
            chaos.faults_most = number(next);
        else
            return fprintf(stderr, "chaos_test: unknown option '%s'\n", argv[i]), 2;
        i++;
    }
    if (one) {
        chaos.verbose = true;
        setvbuf(stdout, NULL, _IOLBF, 0);
        run(seed);
        printf("seed %" PRIu64 ": ok, trace %016" PRIx64 ", %" PRIu64 " events, faults 0x%" PRIx64
               ", %u partial answers, audited %" PRIu64 "\n",
               seed, chaos.trace, chaos.events, chaos.faults, chaos.n_partial, chaos.audited);
        return 0;
    }
    all_cold = mmap(NULL, sizeof *all_cold, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (all_cold == MAP_FAILED)
        abort();
    printf("seeds %" PRIu64 " to %" PRIu64 "\n", from, from + seeds - 1);
    for (seed = from; seed < from + seeds && !(stop && failed); seed++, run_of++)
        failed += !run_apart(seed);
    printf("workers found slow: %" PRIu64 ", sessions served by others for it or for new copies: %" PRIu64
           ", times that slow workers gave chunks away: %" PRIu64 "\n",
           total->verdicts, total->spreads, total->relieved);
    printf("copies that workers came back with, and that count again: %" PRIu64 "\n", total->returned);
    printf("workers that joined: %" PRIu64 ", chunks that they held when the faults ended: %" PRIu64 "\n",
           total->joined, total->copies_at_joined);
    printf("snapshots taken: %u, refused: %u, restored: %u, clients that died meanwhile: %u\n",
           total->snapshots.taken, total->snapshots.refused, total->snapshots.restored,
           total->snapshots.died);
    printf("%" PRIu64 " seeds, %" PRIu64 " failed; %" PRIu64 " layers of chunks left memory, %" PRIu64
           " were read again, %" PRIu64 " chunks were damaged meanwhile\n",
           run_of, failed, all_cold->evicted, all_cold->loaded, all_cold->lost);
    if (run_of >= 200 && all_cold->loaded == 0) {
        printf("nothing was read again: these seeds say nothing about cold rows\n");
        return 1;
    }
    if (run_of >= 200 && total->copies_at_joined == 0) {
        printf("nobody who joined held anything: these seeds say nothing about that\n");
        return 1;
    }
    if (run_of >= 200 && (!total->snapshots.taken || !total->snapshots.restored || !total->snapshots.died)) {
        printf("no snapshot was taken, restored or left by its client: these seeds say nothing about that\n");
        return 1;
    }
    return failed > 0;
}
