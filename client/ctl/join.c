// SPDX-License-Identifier: Apache-2.0
// Command: join-command. Says how a worker on another machine joins this cluster: where the coordinator is
// reached, which files to copy there, and the line to run. The secret itself is shown only where
// --show-secret asks for it.
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/ctl.h"
#include "common/cli/daemon.h"
#include "common/secure/secret.h"
#include "proto/rpc/endpoint.h"

static struct {
    const char *form, *host, *secret_file;
    bool show_secret;
} given = {.form = "shell"};

struct join {
    char coordinators[PROTO_ENDPOINTS_MAX * PROTO_ENDPOINT_MAX]; // for --coordinator
    char secret_file[256];                                       // here; "": it is not on this machine
    char secret[2 * COMMON_SECRET_BYTES + 1];                    // ""; with --show-secret its digits
    bool tokens;                                                 // clients need one; workers never do
    bool tls;
};

// ---- where the coordinator is -----------------------------------------------------------------------------

// The first address of this machine that others can dial; IPv4 first. False: it has none.
static bool own_address(char out[PROTO_ENDPOINT_MAX])
{
    struct ifaddrs *all = NULL;
    bool found = false;
    if (getifaddrs(&all) != 0)
        return false;
    for (int family = AF_INET; family != 0 && !found; family = family == AF_INET ? AF_INET6 : 0)
        for (const struct ifaddrs *a = all; a && !found; a = a->ifa_next) {
            if (!a->ifa_addr || a->ifa_addr->sa_family != family || (a->ifa_flags & IFF_LOOPBACK) ||
                !(a->ifa_flags & IFF_UP))
                continue;
            const struct sockaddr_in6 *six = (const void *)a->ifa_addr;
            if (family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&six->sin6_addr))
                continue; // means nothing without an interface
            found = getnameinfo(a->ifa_addr,
                                family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6),
                                out, PROTO_ENDPOINT_MAX, NULL, 0, NI_NUMERICHOST) == 0;
        }
    freeifaddrs(all);
    return found;
}

// The endpoints that this command was given, where workers of other machines can use them all as they are:
// those of coordinators that stand by are among them. False: they cannot.
static bool take_given(const struct proto_endpoint_list *list, struct join *out)
{
    size_t len = 0;
    for (uint32_t i = 0; i < list->n; i++) {
        struct proto_endpoint e;
        if (proto_endpoint_parse(list->endpoints[i], &e, NULL) != COMMON_OK || e.kind != PROTO_ENDPOINT_TCP ||
            proto_endpoint_is_loopback(&e))
            return false;
        len += (size_t)snprintf(out->coordinators + len, sizeof out->coordinators - len, "%s%s", i ? "," : "",
                                list->endpoints[i]);
    }
    return true;
}

// Host of the first endpoint given that is no loopback address: the coordinator is reached there.
static bool given_host(const struct proto_endpoint_list *list, char out[PROTO_ENDPOINT_MAX])
{
    for (uint32_t i = 0; i < list->n; i++) {
        struct proto_endpoint e;
        if (proto_endpoint_parse(list->endpoints[i], &e, NULL) == COMMON_OK &&
            !proto_endpoint_is_loopback(&e)) {
            snprintf(out, PROTO_ENDPOINT_MAX, "%s", e.host);
            return true;
        }
    }
    return false;
}

// Of what the coordinator says that it listens at, the first that workers can dial: a stream over TCP, rather
// with TLS, and no loopback address.
static enum ctl_exit find_endpoint(const banyan_cluster_info *info, const struct proto_endpoint_list *list,
                                   struct join *out)
{
    char host[PROTO_ENDPOINT_MAX];
    for (uint32_t i = 0; i < 2 * info->n_endpoints; i++) {
        struct proto_endpoint e;
        bool tls = i < info->n_endpoints;
        if (proto_endpoint_parse(info->endpoints[i % info->n_endpoints], &e, NULL) != COMMON_OK ||
            e.kind != PROTO_ENDPOINT_TCP || e.tls != tls || proto_endpoint_is_loopback(&e))
            continue;
        if (given.host)
            snprintf(host, sizeof host, "%s", given.host);
        else if (!proto_endpoint_is_any(&e))
            snprintf(host, sizeof host, "%s", e.host);
        else if (!given_host(list, host) && !own_address(host))
            return ctl_say(CTL_STATE, "this machine has only loopback addresses: give --host NAME");
        snprintf(e.host, sizeof e.host, "%.255s", host);
        proto_endpoint_format(&e, out->coordinators);
        return CTL_OK;
    }
    return ctl_say(
        CTL_STATE,
        info->n_endpoints
            ? "the coordinator listens at no address that workers on other machines can dial: start "
              "it with --listen nng+tcp://0.0.0.0:7411,tcp://0.0.0.0:7412, --token-file and, without TLS, "
              "--insecure"
            : "the coordinator is of an older version, which does not say where it listens");
}

// ---- the secret -------------------------------------------------------------------------------------------

// The cluster's secret where it lies on this machine, as daemons look for it. Whether it is this cluster's is
// not checked.
static enum ctl_exit find_secret(struct join *out)
{
    struct common_secret secret;
    struct common_error err;
    char *standard = NULL;
    const char *places[] = {given.secret_file, "/etc/banyan/cluster.secret", NULL};
    if (!given.secret_file &&
        common_daemon_state_path("cluster.secret", "--secret-file", &standard, &err) == COMMON_OK)
        places[2] = standard;
    enum common_code code = COMMON_NOT_FOUND;
    for (size_t i = 0; i < sizeof places / sizeof *places && code != COMMON_OK; i++) {
        if (!places[i] || strlen(places[i]) >= sizeof out->secret_file)
            continue;
        code = common_secret_load(places[i], &secret, &err);
        if (code == COMMON_OK)
            snprintf(out->secret_file, sizeof out->secret_file, "%s", places[i]);
        if (given.secret_file)
            break;
    }
    free(standard);
    if (code == COMMON_OK && given.show_secret)
        for (size_t i = 0; i < COMMON_SECRET_BYTES; i++)
            snprintf(out->secret + 2 * i, 3, "%02x", secret.bytes[i]);
    if (code != COMMON_OK && given.secret_file)
        return ctl_say(CTL_FILE, "%s", err.message);
    if (code != COMMON_OK && given.show_secret)
        return ctl_say(CTL_FILE,
                       "the cluster's secret is in none of the usual places on this machine, or you may not "
                       "read it: give --secret-file");
    return CTL_OK;
}

// ---- what is said -----------------------------------------------------------------------------------------

// The worker's certificate is its own, and is made where the authority's key is.
static void say_certificate(const char *folder)
{
    printf("# On the machine with the CA's key: banyanctl pki issue CA --role=worker --host=NAME "
           "--name=worker --out=worker-tls,\n"
           "# with the other machine's names and addresses as NAME. Copy worker-tls/worker.pem, worker.key "
           "and ca.pem to that\n"
           "# machine, to %s.\n",
           folder);
}

static void say_copy(const struct join *join, const char *secret_at)
{
    if (join->secret[0])
        printf("(umask 077 && echo %s > %s)\n", join->secret, secret_at);
    else if (join->secret_file[0])
        printf("# Copy %s from this machine to %s there, mode 0600: the cluster's secret.\n",
               join->secret_file, secret_at);
    else
        printf("# Copy the cluster's secret to %s there, mode 0600: the coordinator's --secret-file.\n",
               secret_at);
    if (!join->tokens)
        printf("# This cluster has no tokens: anyone who can reach the coordinator can use it.\n");
    if (!join->tls)
        printf("# This cluster has no TLS: --insecure lets the worker listen where others can reach it, and "
               "all traffic can be\n"
               "# read on the network.\n");
}

static void print_shell(const struct join *join)
{
    say_copy(join, "cluster.secret");
    if (join->tls)
        say_certificate("the folder where this line is run");
    printf("banyan-worker --coordinator=%s --secret-file=cluster.secret%s\n", join->coordinators,
           join->tls ? " --tls-cert=worker.pem --tls-key=worker.key --tls-ca=ca.pem" : " --insecure");
}

// The file of options is the package's; the unit takes the secret from this place by itself.
static void print_systemd(const struct join *join)
{
    say_copy(join, "/etc/banyan/cluster.secret");
    if (join->tls) {
        say_certificate("/etc/banyan: worker.key as tls.key, mode 0600, where the unit finds it by itself");
        printf("printf 'tls-cert = /etc/banyan/worker.pem\\ntls-ca = /etc/banyan/ca.pem\\n' | sudo tee -a "
               "/etc/banyan/worker.conf\n");
    }
    printf("sudo sed -i 's|^coordinator = .*|coordinator = %s|%s' /etc/banyan/worker.conf && "
           "sudo systemctl enable --now banyan-worker@0\n",
           join->coordinators, join->tls ? "" : "; s|^#insecure = .*|insecure = true|");
}

// These lines are pasted into a shell, some of them as root, and the coordinator's words come over a network.
static bool is_plain(const char *text)
{
    return text[strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,:/+-_~[]%")] ==
           '\0';
}

static enum ctl_exit run_join(struct ctl *ctl, int n_args, char **args)
{
    (void)n_args;
    (void)args;
    struct join join = {0};
    struct proto_endpoint_list list;
    banyan_cluster_info info;
    banyan_error error;
    if (banyan_cluster_get_info(ctl->client, &info, &error) != BANYAN_OK)
        return ctl_fail(&error);
    enum ctl_exit exit_code = CTL_OK;
    join.tokens = info.needs_token;
    if (proto_endpoint_list_parse(ctl->endpoint, &list, NULL) != COMMON_OK) // it is what has connected
        list.n = 0;
    if (given.host || list.n == 0 || !take_given(&list, &join))
        exit_code = find_endpoint(&info, &list, &join);
    if (exit_code == CTL_OK && (!is_plain(join.coordinators) || !is_plain(info.version)))
        exit_code = ctl_say(CTL_STATE, "the address or version that the coordinator reports is malformed and "
                                       "unsafe in a shell: give --host, and check what answers there");
    join.tls = proto_endpoint_has_tls(join.coordinators);
    if (exit_code == CTL_OK)
        exit_code = find_secret(&join);
    if (exit_code == CTL_OK && ctl->json) {
        json_t *record = json_pack("{s:s, s:s, s:s, s:b}", "coordinator", join.coordinators, "version",
                                   info.version, "secret_file", join.secret_file, "tls", join.tls);
        if (join.secret[0])
            json_object_set_new(record, "secret", json_string(join.secret));
        ctl_print_json(record);
    } else if (exit_code == CTL_OK) {
        printf("# On the other machine, with Banyan %s installed there:\n", info.version);
        if (strcmp(given.form, "systemd") == 0)
            print_systemd(&join);
        else
            print_shell(&join);
    }
    banyan_cluster_info_free(&info);
    return exit_code;
}

static enum ctl_exit check_join(int n_args, char **args)
{
    (void)n_args;
    (void)args;
    struct proto_endpoint e = {.kind = PROTO_ENDPOINT_TCP, .port = 1};
    char text[PROTO_ENDPOINT_MAX];
    if (!given.host)
        return CTL_OK;
    if (strlen(given.host) < sizeof e.host) {
        strcpy(e.host, given.host);
        proto_endpoint_format(&e, text);
        if (given.host[strcspn(given.host, " /,'\"\\$`;&|<>()")] == '\0' &&
            proto_endpoint_parse(text, &e, NULL) == COMMON_OK && !proto_endpoint_is_any(&e))
            return CTL_OK;
    }
    return ctl_say(CTL_USAGE, "--host '%.100s' is not a name or an address, as in --host 10.0.0.5",
                   given.host);
}

static const struct common_option join_options[] = {
    {"form", 0, COMMON_OPTION_STRING, &given.form, "shell|systemd",
     "How to start the worker there: by hand, from any folder, or as a unit of the package\n"
     "banyan-worker. Default: shell.",
     0, 0},
    {"host", 0, COMMON_OPTION_STRING, &given.host, "NAME",
     "Name or address by which the other machine reaches the coordinator. Default: the address\n"
     "that this command uses; for loopback, an address of this machine.",
     0, 0},
    {"secret-file", 's', COMMON_OPTION_STRING, &given.secret_file, "FILE",
     "The cluster's secret on this machine. Default: where daemons look for it, then\n"
     "/etc/banyan/cluster.secret.",
     0, 0},
    {"show-secret", 0, COMMON_OPTION_FLAG, &given.show_secret, NULL,
     "Also print the secret, in a line that creates its file: anyone who sees it controls the\ncluster.", 0,
     0},
    {0},
};

const struct ctl_command ctl_join_commands[] = {
    {"join-command", "", "print how a worker on another machine joins this cluster",
     "Prints what to do on another machine to make a worker there join this cluster: the files to copy to "
     "it, as\n"
     "comments, and the line to run. The secret is not printed.",
     join_options, 0, 0, run_join, check_join},
    {0},
};
