// SPDX-License-Identifier: Apache-2.0
// Commands: pki init|issue|show. A small certificate authority in a folder; they ask no coordinator.
#include "client/ctl/pki.h"

#include <inttypes.h>
#include <openssl/evp.h>
#include <openssl/x509.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "client/ctl/ctl.h"
#include "common/base/random.h"

#define DAY_S          86400
#define EARLY_S        (5 * 60) // certificates begin so much before now: clocks differ
#define AUTHORITY_DAYS 3650
#define ISSUE_DAYS     365

static struct {
    const char *role, *host, *worker, *name, *out;
    uint64_t days; // 0: the default
    bool replace, keep_key;
} given;

static enum ctl_exit fail(const struct common_error *err)
{
    switch (err->code) {
    case COMMON_INVALID_ARGUMENT:
        return ctl_say(CTL_REFUSED, "%s", err->message);
    case COMMON_ALREADY_EXISTS:
        return ctl_say(CTL_STATE, "%s", err->message);
    case COMMON_FAILED_PRECONDITION:
        return ctl_say(CTL_STATE, "%s", err->message);
    case COMMON_INTERNAL:
        return ctl_say(CTL_INTERNAL, "%s", err->message);
    default:
        return ctl_say(CTL_FILE, "%s", err->message);
    }
}

static void write_date(int64_t at_s, char out[32])
{
    struct tm parts;
    time_t at = (time_t)at_s;
    if (!gmtime_r(&at, &parts) || strftime(out, 32, "%Y-%m-%dT%H:%M:%SZ", &parts) == 0)
        snprintf(out, 32, "?");
}

static int64_t days_left(int64_t till_s)
{
    int64_t left_s = till_s - (int64_t)time(NULL);
    return (left_s < 0 ? left_s - DAY_S + 1 : left_s) / DAY_S; // rounded down: −1 on the day after
}

// ---- output -----------------------------------------------------------------------------------------------

static json_t *roles_json(unsigned roles)
{
    json_t *list = json_array();
    if (roles & CTL_PKI_COORDINATOR)
        json_array_append_new(list, json_string("coordinator"));
    if (roles & CTL_PKI_WORKER)
        json_array_append_new(list, json_string("worker"));
    if (roles & CTL_PKI_CLIENT)
        json_array_append_new(list, json_string("client"));
    return list;
}

// As ctl_print_rows shows lists: a text, "a, b".
static json_t *roles_text(unsigned roles, bool authority)
{
    char text[64];
    snprintf(text, sizeof text, "%s%s%s", roles & CTL_PKI_COORDINATOR ? ", coordinator" : "",
             roles & CTL_PKI_WORKER ? ", worker" : "", roles & CTL_PKI_CLIENT ? ", client" : "");
    return json_string(*text ? text + 2 : authority ? "authority" : "not a Banyan role");
}

static json_t *facts_json(const struct ctl *ctl, const struct ctl_pki_facts *facts)
{
    char from[32], till[32], state[64];
    int64_t left = days_left(facts->till_s);
    bool any = !ctl->json && facts->roles & CTL_PKI_WORKER && !facts->workers[0];
    write_date(facts->from_s, from);
    write_date(facts->till_s, till);
    if (left < 0)
        snprintf(state, sizeof state, "%s, expired", till);
    else if (facts->from_s > (int64_t)time(NULL))
        snprintf(state, sizeof state, "%s, not valid yet", till);
    else
        snprintf(state, sizeof state, "%s, in %" PRId64 " day%s", till, left, left == 1 ? "" : "s");
    return json_pack("{s:s, s:s, s:o, s:s, s:s, s:b, s:s, s:s, s:I, s:s, s:s, s:s}", "subject",
                     facts->subject, "issuer", facts->issuer, "roles",
                     ctl->json ? roles_json(facts->roles) : roles_text(facts->roles, facts->authority),
                     "workers", any ? "any" : facts->workers, "hosts", facts->hosts, "authority",
                     facts->authority, "not_before", from, "not_after", ctl->json ? till : state, "days_left",
                     (json_int_t)left, "serial", facts->serial, "key", facts->key, "fingerprint",
                     facts->fingerprint);
}

static const struct ctl_column shown[] = {
    {"subject", "subject", CTL_TEXT},
    {"issuer", "issuer", CTL_TEXT},
    {"roles", "roles", CTL_TEXT},
    {"workers", "workers", CTL_TEXT},
    {"hosts", "hosts", CTL_TEXT},
    {"not_before", "not before", CTL_TEXT},
    {"not_after", "not after", CTL_TEXT},
    {"serial", "serial", CTL_TEXT},
    {"key", "key", CTL_TEXT},
    {"fingerprint", "SHA-256", CTL_TEXT},
    {0},
};

static enum ctl_exit tell_made(const struct ctl *ctl, const char *dir, const char *name,
                               const struct ctl_pki_pair *pair)
{
    struct ctl_pki_facts facts;
    struct common_error err;
    char till[32];
    if (ctl_pki_read_facts(pair->cert, &facts, &err) != COMMON_OK)
        return fail(&err);
    write_date(facts.till_s, till);
    if (!ctl->json) {
        printf("%s/%s.pem and %s/%s.key: %s, until %s\n", dir, name, dir, name, facts.subject, till);
        return CTL_OK;
    }
    json_t *record = facts_json(ctl, &facts);
    json_object_set_new(record, "cert", json_sprintf("%s/%s.pem", dir, name));
    json_object_set_new(record, "key_file", json_sprintf("%s/%s.key", dir, name));
    ctl_print_json(record);
    return CTL_OK;
}

// ---- pki init ---------------------------------------------------------------------------------------------

static struct ctl_pki_wish wish_of(const char *name, uint64_t default_days)
{
    int64_t now_s = (int64_t)time(NULL);
    return (struct ctl_pki_wish){
        .name = name,
        .from_s = now_s - EARLY_S,
        .till_s = now_s + (int64_t)(given.days ? given.days : default_days) * DAY_S,
    };
}

static enum ctl_exit run_init(struct ctl *ctl, int n_args, char **args)
{
    (void)n_args;
    char name[CTL_PKI_NAME + 2];
    uint32_t mark;
    struct ctl_pki_pair pair = {0};
    struct common_error err;
    if (!common_random(&mark, sizeof mark))
        return ctl_say(CTL_INTERNAL, "cannot get random bytes");
    // So that the next authority, which stands beside this one for a while, has another name.
    snprintf(name, sizeof name, "banyan CA %08" PRIx32, mark);
    struct ctl_pki_wish wish = wish_of(given.name ? given.name : name, AUTHORITY_DAYS);
    enum common_code code = ctl_pki_make(&wish, NULL, &pair, &err);
    if (code == COMMON_OK)
        code = ctl_pki_write(args[0], "ca", &pair, false, &err);
    enum ctl_exit exit_code = code == COMMON_OK ? tell_made(ctl, args[0], "ca", &pair) : fail(&err);
    ctl_pki_free(&pair);
    return exit_code;
}

// ---- pki issue --------------------------------------------------------------------------------------------

static bool is_file_name(const char *name)
{
    return *name && *name != '.' && !strchr(name, '/') && strcmp(name, "ca") != 0;
}

// The first role and, where it has one, the first host: worker-10.0.0.5.
static void default_name(char *out, size_t size)
{
    int role = (int)strcspn(given.role, ","), host = given.host ? (int)strcspn(given.host, ",") : 0;
    snprintf(out, size, "%.*s%s%.*s", role, given.role, host ? "-" : "", host, host ? given.host : "");
}

static enum ctl_exit issue(const struct ctl *ctl, const char *dir, const char *name,
                           const struct ctl_pki_wish *wish)
{
    struct ctl_pki_pair authority = {0}, pair = {0};
    struct common_error err;
    const char *out = given.out ? given.out : dir;
    struct ctl_pki_wish with_key = *wish;
    enum common_code code = ctl_pki_load_authority(dir, &authority, &err);
    if (code == COMMON_OK && given.keep_key)
        code = ctl_pki_load_key(out, name, &with_key.key, &err);
    if (code == COMMON_OK)
        code = ctl_pki_make(&with_key, &authority, &pair, &err);
    if (code == COMMON_OK)
        code = ctl_pki_write(out, name, &pair, given.replace || given.keep_key, &err);
    if (code == COMMON_ALREADY_EXISTS) {
        const struct common_error there = err;
        code = common_error_set(&err, code, "%.300s; use --replace", there.message);
    }
    if (code == COMMON_OK)
        code = ctl_pki_write_authority(out, authority.cert, &err);
    enum ctl_exit exit_code = code == COMMON_OK ? tell_made(ctl, out, name, &pair) : fail(&err);
    ctl_pki_free(&pair);
    ctl_pki_free(&authority);
    EVP_PKEY_free(with_key.key);
    return exit_code;
}

static enum ctl_exit run_issue(struct ctl *ctl, int n_args, char **args)
{
    (void)n_args;
    char name[300];
    unsigned roles;
    struct common_error err;
    if (!given.role)
        return ctl_say(CTL_USAGE, "pki issue needs --role: coordinator, worker or client");
    if (ctl_pki_roles_parse(given.role, &roles, &err) != COMMON_OK)
        return ctl_say(CTL_USAGE, "--role: %s", err.message);
    if (given.worker && !(roles & CTL_PKI_WORKER))
        return ctl_say(CTL_USAGE, "--worker needs --role worker");
    if (!given.host && roles != CTL_PKI_CLIENT)
        return ctl_say(CTL_USAGE, "a daemon's certificate needs --host: the names and addresses at which it "
                                  "is dialled, separated by commas");
    default_name(name, sizeof name);
    if (given.name)
        snprintf(name, sizeof name, "%s", given.name);
    if (!is_file_name(name) || strlen(name) > CTL_PKI_NAME)
        return ctl_say(
            CTL_USAGE,
            "'%.100s' cannot name the files: give --name, 1 to %d characters without '/', not beginning with "
            "'.', and not 'ca'",
            name, CTL_PKI_NAME);
    struct ctl_pki_wish wish = wish_of(name, ISSUE_DAYS);
    wish.roles = roles;
    wish.hosts = given.host;
    wish.workers = given.worker;
    return issue(ctl, args[0], name, &wish);
}

// ---- pki show ---------------------------------------------------------------------------------------------

static enum ctl_exit run_show(struct ctl *ctl, int n_args, char **args)
{
    (void)n_args;
    X509 *certs[CTL_PKI_CERTS];
    size_t n = 0;
    struct common_error err;
    if (ctl_pki_read_file(args[0], certs, &n, &err) != COMMON_OK)
        return ctl_say(CTL_FILE, "%s", err.message);
    enum ctl_exit exit_code = CTL_OK;
    json_t *all = json_array();
    for (size_t i = 0; i < n; i++) {
        struct ctl_pki_facts facts;
        if (exit_code == CTL_OK && ctl_pki_read_facts(certs[i], &facts, &err) == COMMON_OK)
            json_array_append_new(all, facts_json(ctl, &facts));
        else if (exit_code == CTL_OK)
            exit_code = ctl_say(CTL_FILE, "'%.200s': %s", args[0], err.message);
        X509_free(certs[i]);
    }
    for (size_t i = 0; exit_code == CTL_OK && !ctl->json && i < n; i++) {
        if (i)
            printf("\n");
        ctl_print_record(ctl, json_incref(json_array_get(all, i)), shown);
    }
    if (exit_code == CTL_OK && ctl->json)
        ctl_print_json(all);
    else
        json_decref(all);
    return exit_code;
}

// ---- the table --------------------------------------------------------------------------------------------

#define DAYS_MAX 36500

static const struct common_option init_options[] = {
    {"name", 0, COMMON_OPTION_STRING, &given.name, "NAME",
     "Common name of its subject. Default: banyan CA and eight random digits.", 0, 0},
    {"days", 0, COMMON_OPTION_U64, &given.days, "N", "Days until it expires. Default: 3650.", 1, DAYS_MAX},
    {0},
};

static const struct common_option issue_options[] = {
    {"role", 0, COMMON_OPTION_STRING, &given.role, "ROLE,...",
     "Role of its owner: coordinator, worker or client, or several. Required.", 0, 0},
    {"host", 0, COMMON_OPTION_STRING, &given.host, "HOST,...",
     "Names and addresses at which the daemon is dialled, separated by commas: the dialler\n"
     "checks them. A client's certificate needs none. Default: none.",
     0, 0},
    {"worker", 0, COMMON_OPTION_STRING, &given.worker, "NAME,...",
     "Names that the worker may use (its --name), separated by commas: the coordinator accepts\n"
     "no other. Default: any.",
     0, 0},
    {"name", 0, COMMON_OPTION_STRING, &given.name, "NAME",
     "Common name of its subject, and of its files. Default: role and first host, as in\nworker-10.0.0.5.", 0,
     0},
    {"days", 0, COMMON_OPTION_U64, &given.days, "N", "Days until it expires. Default: 365.", 1, DAYS_MAX},
    {"out", 0, COMMON_OPTION_STRING, &given.out, "DIR",
     "Folder for NAME.pem, NAME.key and a copy of ca.pem. Default: the CA's folder.", 0, 0},
    {"replace", 0, COMMON_OPTION_FLAG, &given.replace, NULL,
     "Replace existing files of these names; then send SIGHUP to the daemon.", 0, 0},
    {"keep-key", 0, COMMON_OPTION_FLAG, &given.keep_key, NULL,
     "The same, but keep the existing key: for a daemon that has a copy of it, as with systemd.", 0, 0},
    {0},
};

const struct ctl_command ctl_pki_commands[] = {
    {"pki init", "DIR", "create a small certificate authority (CA)",
     "Creates a certificate authority, if you have none: DIR/ca.pem, which every daemon and client needs, "
     "and\n"
     "DIR/ca.key, which stays in place and is used only by 'pki issue'. EC P-256. Existing files are never\n"
     "overwritten. No coordinator is contacted.",
     init_options, 1, 1, run_init, NULL},
    {"pki issue", "DIR --role=ROLE", "create a key and a certificate signed by the CA",
     "Creates a key and its certificate, signed by the CA in DIR. The certificate names the owner's role, so "
     "a\n"
     "worker's key cannot be used as a coordinator's.",
     issue_options, 1, 1, run_issue, NULL},
    {"pki show", "FILE", "show the certificates in a file",
     "Shows subject, role, hosts, expiry and fingerprint of each certificate in a PEM file. It does not "
     "check who\n"
     "signed them.",
     NULL, 1, 1, run_show, NULL},
    {0},
};
