// SPDX-License-Identifier: Apache-2.0
// Real daemons under load and faults, from a seed (tests/chaos/README.md):
//   e2e_chaos [--seed S | --stores on|off] [--minutes N] [--only CLASS] [--json]
//   e2e_chaos --soak [--steps N] [--json] | --pauses [--json]
// First a part without faults, to know the rate; then faults of every class in rounds, each round in another
// order.
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "tests/chaos/faults.h"
#include "tests/chaos/load.h"
#include "tests/chaos/net.h"
#include "tests/chaos/quiet.h"
#include "tests/chaos/stores.h"
#include "tests/chaos/verdict.h"
#include "tests/e2e/support.h"

#define RESTORE_NS (20 * COMMON_NS_PER_S) // copies are made again within that, or the session starts afresh

static struct chaos {
    uint64_t seed;
    bool seed_given;
    int parity; // of a seed that is drawn: 0 with workers' stores, 1 without; -1: as it comes
    double minutes;
    bool json;
    int only;                                                 // a class; -1: all
    uint64_t steps;                                           // of a soak
    int (*instead)(uint64_t seed, uint64_t steps, bool json); // soak, pauses; NULL: faults
    const char *no_hosts;                                     // why there are none; NULL: there are
    bool stores;
    uint64_t made[FAULT_CLASSES];
    struct load_counts counts;
    double rate_ratio;
    char failed[700];
} chaos = {.minutes = 0.5, .parity = -1, .only = -1, .steps = 1000000};

static double steps_a_second(struct load *load, const struct load_counts *since, uint64_t since_ns)
{
    struct load_counts now;
    load_get(load, &now);
    return (double)(now.steps - since->steps) / ((double)(common_clock_ns() - since_ns) / 1e9);
}

static void note_failure(const char *why)
{
    if (!chaos.failed[0])
        snprintf(chaos.failed, sizeof(chaos.failed), "%s", why);
}

// Every class once, in an order of the seed's. False: it is over, or something is wrong.
static bool make_round(struct faults *faults, struct load *load, uint64_t until)
{
    int order[FAULT_CLASSES];
    for (int i = 0; i < FAULT_CLASSES; i++) {
        int k = (int)faults_draw(faults, (uint64_t)i + 1);
        order[i] = order[k];
        order[k] = i;
    }
    for (int i = 0; i < FAULT_CLASSES; i++) {
        enum fault_class which = (enum fault_class)order[i];
        if (!faults_has(faults, which) || (chaos.only >= 0 && (int)which != chaos.only))
            continue;
        if (common_clock_ns() > until || load_wrong(load))
            return false;
        uint64_t begun = common_clock_ns();
        if (!chaos.json)
            printf("%s\n", fault_names[which]);
        if (!faults_make(faults, load, which)) {
            note_failure(fault_names[which]);
            return false;
        }
        chaos.made[which]++;
        uint64_t rest = 500 + faults_draw(faults, 2000);
        support_sleep_ms((unsigned)rest);
        if (!chaos.json)
            printf("  %.1f s\n", (double)(common_clock_ns() - begun) / 1e9);
    }
    return true;
}

static void disturb(struct faults *faults, struct load *load)
{
    uint64_t length = (uint64_t)(chaos.minutes * 60e9), begun = common_clock_ns();
    uint64_t quiet = length / 10 < 30 * COMMON_NS_PER_S ? length / 10 : 30 * COMMON_NS_PER_S;
    struct load_counts since = {0};
    support_sleep_ms((unsigned)(quiet / COMMON_NS_PER_MS));
    double rate = steps_a_second(load, &since, begun);
    load_get(load, &since);
    load_forget_pauses(load);
    uint64_t from = common_clock_ns();
    while (make_round(faults, load, begun + length)) {
    }
    chaos.rate_ratio = steps_a_second(load, &since, from) / rate;
    if (!chaos.json)
        printf("%.0f steps a second without faults, %.2f of it with them\n", rate, chaos.rate_ratio);
}

// Of a run in which nothing was wrong.
static void look_at_figures(const struct faults *faults)
{
    char why[200];
    struct verdict_class classes[FAULT_CLASSES];
    for (int i = 0; i < FAULT_CLASSES; i++)
        classes[i] = (struct verdict_class){.name = fault_names[i],
                                            .made = chaos.made[i],
                                            .chosen = faults_has(faults, (enum fault_class)i) &&
                                                      (chaos.only < 0 || chaos.only == i)};
    const struct verdict_run run = {.minutes = chaos.minutes,
                                    .failed_steps = chaos.counts.failed_steps,
                                    .rate_ratio = chaos.rate_ratio,
                                    .all_classes = chaos.only < 0,
                                    .classes = classes,
                                    .n_classes = FAULT_CLASSES};
    if (!verdict_holds(&run, why, sizeof(why)))
        note_failure(why);
}

// What was deleted is nowhere.
static void nothing_is_left(struct faults *faults)
{
    banyan_client *client = support_connect(faults_cluster(faults), "unix");
    banyan_session_list list;
    OK(banyan_session_get_list(client, &list, ERR)); // forks without a verdict
    for (uint32_t i = 0; i < list.n; i++) {
        banyan_session *session;
        OK(banyan_session_open(client, list.sessions[i].id, NULL, &session, ERR));
        OK(banyan_session_delete(session, ERR));
        banyan_session_close(session);
    }
    banyan_session_list_free(&list);
    EVENTUALLY(60, support_used_bytes(client) == 0);
    banyan_disconnect(client);
}

static void daemons_come_and_go(void **state)
{
    (void)state;
    // Every second seed: what a worker holds is in files, too
    struct faults *faults = faults_start(&(struct faults_options){
        .seed = chaos.seed, .hosts = !chaos.no_hosts, .stores = chaos.stores, .heartbeat = "500ms"});
    struct load_options options = {.seed = chaos.seed, .restore_ns = RESTORE_NS};
    for (int i = 0; i < LOAD_CLIENTS; i++)
        options.endpoints[i] = faults_endpoint(faults, i);
    struct load *load = load_start(&options);
    disturb(faults, load);
    if (!chaos.failed[0] && !load_wrong(load) && !faults_over(faults))
        note_failure("workers do not come back");
    if (!load_end(load))
        note_failure(load_wrong(load));
    load_get(load, &chaos.counts);
    load_free(load);
    look_at_figures(faults);
    if (!chaos.failed[0])
        nothing_is_left(faults);
    if (faults_stop(faults, chaos.failed[0]) > 0)
        note_failure("a daemon did not end as it should");
    if (chaos.failed[0])
        fail_msg("seed %" PRIu64 ": %s\nOnce more: tests/chaos/run --seed %" PRIu64 " --minutes %g",
                 chaos.seed, chaos.failed, chaos.seed, chaos.minutes);
}

static void print_result(void)
{
    const struct load_counts *c = &chaos.counts;
    printf("{\"seed\": %" PRIu64 ", \"minutes\": %g, \"stores\": %s, \"steps\": %" PRIu64 ", \"faults\": {",
           chaos.seed, chaos.minutes, chaos.stores ? "true" : "false", c->steps);
    for (int i = 0; i < FAULT_CLASSES; i++)
        printf("%s\"%s\": %" PRIu64, i ? ", " : "", fault_names[i], chaos.made[i]);
    const struct {
        const char *name;
        uint64_t n;
    } rows[] = {
        {"attaches", c->attaches},
        {"truncates", c->truncates},
        {"forks", c->forks},
        {"again", c->again},
        {"retries", c->retries},
        {"failed_steps", c->failed_steps},
        {"failed_full", c->failed_full},
        {"failed_beyond", c->failed_beyond},
        {"wrong", c->wrong},
        {"lost_tokens", c->lost_tokens},
        {"gone_tokens", c->gone_tokens},
        {"emptied", c->emptied},
        {"longest_pause_ms", c->longest_pause_ns / COMMON_NS_PER_MS},
    };
    printf("}");
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        printf(", \"%s\": %" PRIu64, rows[i].name, rows[i].n);
    printf(", \"rate_ratio\": %.3f, \"failed\": %s}\n", chaos.rate_ratio, chaos.failed[0] ? "true" : "false");
}

static bool take_option(const char *name, const char *value)
{
    if (strcmp(name, "--seed") == 0) {
        chaos.seed = strtoull(value, NULL, 10);
        chaos.seed_given = true;
    } else if (strcmp(name, "--stores") == 0) {
        chaos.parity = strcmp(value, "on") == 0 ? 0 : 1;
        return chaos.parity == 0 || strcmp(value, "off") == 0;
    } else if (strcmp(name, "--minutes") == 0)
        chaos.minutes = strtod(value, NULL);
    else if (strcmp(name, "--steps") == 0)
        chaos.steps = strtoull(value, NULL, 10);
    else if (strcmp(name, "--only") == 0) {
        for (chaos.only = 0; chaos.only < FAULT_CLASSES && strcmp(value, fault_names[chaos.only]) != 0;)
            chaos.only++;
        return chaos.only < FAULT_CLASSES;
    } else
        return false;
    return true;
}

int main(int argc, char **argv)
{
    chaos.seed = common_clock_wall_ns() / COMMON_NS_PER_MS;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0) {
            chaos.json = true;
        } else if (strcmp(argv[i], "--soak") == 0) {
            chaos.instead = quiet_soak;
        } else if (strcmp(argv[i], "--pauses") == 0) {
            chaos.instead = quiet_pauses;
        } else if (i + 1 == argc || !take_option(argv[i], argv[i + 1])) {
            fprintf(stderr, "e2e_chaos: '%s' makes no sense; try tests/chaos/run --help\n", argv[i]);
            return 2;
        } else {
            i++;
        }
    }
    if (chaos.parity >= 0 && chaos.seed_given) {
        fprintf(stderr, "e2e_chaos: --seed says whether there are stores: leave --stores out\n");
        return 2;
    }
    if (chaos.parity >= 0)
        chaos.seed += chaos.seed % 2 != (uint64_t)chaos.parity;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (chaos.instead)
        return chaos.instead(chaos.seed, chaos.steps, chaos.json);
    chaos.no_hosts = net_start();
    chaos.stores = chaos.seed % 2 == 0 && stores_supported();
    if (!chaos.json)
        printf("seed %" PRIu64 ", %g minutes, workers %s stores\n", chaos.seed, chaos.minutes,
               chaos.stores ? "with" : "without");
    if (chaos.no_hosts)
        fprintf(stderr, "chaos: no partitions of network namespaces: %s\n", chaos.no_hosts);
    const struct CMUnitTest tests[] = {cmocka_unit_test(daemons_come_and_go)};
    int failed = cmocka_run_group_tests_name("chaos", tests, NULL, NULL);
    print_result();
    return failed;
}
