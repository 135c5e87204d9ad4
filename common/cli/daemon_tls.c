// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "common/cli/daemon.h"
#include "common/log/log.h"
#include "common/secure/tls.h"

static const char *date(int64_t at_s, char out[32])
{
    struct tm parts;
    time_t at = (time_t)at_s;
    if (at_s == INT64_MAX || !gmtime_r(&at, &parts) || strftime(out, 32, "%Y-%m-%dT%H:%M:%SZ", &parts) == 0)
        snprintf(out, 32, "?");
    return out;
}

static void log_ends(const struct common_tls *tls, const char *file, const char *how)
{
    char own[32], ca[32];
    common_log_info("%s tls_cert=%s until=%s ca_until=%s", how, file, date(common_tls_expires_s(tls), own),
                    date(common_tls_ca_expires_s(tls), ca));
}

static enum common_code check_role(const struct common_tls *tls, const char *file, const char *uri,
                                   struct common_error *err)
{
    if (common_tls_says(tls, uri))
        return COMMON_OK;
    return common_error_set(
        err, COMMON_PERMISSION_DENIED,
        "the certificate in '%.200s' is not for this kind of daemon: it lacks the URI %s in its "
        "subjectAltName; 'banyanctl pki issue --role=%s' makes one",
        file, uri, strchr(uri, ':') ? strchr(uri, ':') + 1 : uri);
}

enum common_code common_daemon_load_tls(struct common_daemon *daemon, const char *uri,
                                        struct common_error *err)
{
    const struct common_tls_files files = {.cert = daemon->tls_cert,
                                           .key = daemon->tls_key,
                                           .ca = daemon->tls_ca};
    if (!files.cert && !files.key && !files.ca) {
        if (!common_daemon_wants_client_certs(daemon))
            return COMMON_OK;
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "--tls-client-cert require needs --tls-cert, --tls-key and --tls-ca");
    }
    if (!files.cert || !files.key || !files.ca)
        return common_error_set(
            err, COMMON_INVALID_ARGUMENT,
            "a daemon that uses TLS needs all of --tls-cert, --tls-key and --tls-ca: %s is missing",
            !files.cert  ? "--tls-cert"
            : !files.key ? "--tls-key"
                         : "--tls-ca");
    struct common_tls *tls;
    enum common_code code = common_tls_new(&files, &tls, err);
    if (code != COMMON_OK) // what is wrong with a file is no mistake on the command line
        return code == COMMON_INVALID_ARGUMENT ? COMMON_FAILED_PRECONDITION : code;
    code = check_role(tls, files.cert, uri, err);
    if (code != COMMON_OK) {
        common_tls_unref(tls);
        return code;
    }
    log_ends(tls, files.cert, "TLS:");
    daemon->tls = tls;
    return COMMON_OK;
}

enum common_code common_daemon_reload_tls(const struct common_daemon *daemon, const char *uri,
                                          struct common_error *err)
{
    const struct common_tls_files files = {.cert = daemon->tls_cert,
                                           .key = daemon->tls_key,
                                           .ca = daemon->tls_ca};
    struct common_tls *tried;
    if (!daemon->tls)
        return COMMON_OK;
    // Looked at first, aside: a certificate of another role must not take this daemon's place.
    enum common_code code = common_tls_new(&files, &tried, err);
    if (code == COMMON_OK) {
        code = check_role(tried, files.cert, uri, err);
        common_tls_unref(tried);
    }
    if (code == COMMON_OK)
        code = common_tls_reload(daemon->tls, err);
    if (code == COMMON_OK)
        log_ends(daemon->tls, files.cert, "signal=HUP: certificates reloaded:");
    else
        common_log_error("signal=HUP: certificates are unchanged: %s", err->message);
    return code;
}

bool common_daemon_wants_client_certs(const struct common_daemon *daemon)
{
    return daemon->tls_client_cert && strcmp(daemon->tls_client_cert, "require") == 0;
}

enum common_code common_daemon_http_tls(const struct common_daemon *daemon, bool is_loopback,
                                        struct common_tls **out, struct common_error *err)
{
    bool on = strcmp(daemon->http_tls, "on") == 0, off = strcmp(daemon->http_tls, "off") == 0;
    if (on && !daemon->tls)
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "--http-tls on needs --tls-cert, --tls-key and --tls-ca");
    *out = on || (!off && !is_loopback) ? daemon->tls : NULL;
    return COMMON_OK;
}
