// SPDX-License-Identifier: Apache-2.0
// The dashboard: a page for people, and the JSON that it is drawn of, over --http. It looks and changes
// nothing. On the loop thread; each answer is made at once and never waits.
//
//   /                      the page; its files are in the program (files.h)
//   /api/v1/cluster        the coordinator: readiness, limits, counters
//   /api/v1/workers        all workers
//   /api/v1/plans[/ID]     the trees; one with its members and parents
//   /api/v1/sessions       a page of them, sorted and filtered here (list.h)
//   /api/v1/sessions/ID    who holds what; /mass, /trace: what its last steps looked at, and where their time went (look.h)
//   /api/v1/events         what has happened, after a number
//   /api/v1/history        the last hour (history.h)
//   /api/v1/tenants        the tenants and their quotas
//
// Who may ask: with a token, those that present it (Authorization: Bearer); without, anyone who reaches the
// address. A wrong token is a refusal like an RPC's: an event, a line in the log,
// banyan_refused_total{reason="token"}.
//
// Against pages of other sites, in a browser that does reach it: the Host must name this host, or an address
// where --http is not loopback (a name could be anybody's, sent here by their DNS), and a browser's
// Sec-Fetch-Site no other site. What begins something (?watch=1) needs the header X-Banyan, too.
#ifndef COORDINATOR_DASHBOARD_H
#define COORDINATOR_DASHBOARD_H

#include "common/http/http.h"

struct coordinator;
struct coordinator_dashboard; // opaque

// address: HOST:PORT of --http, as common_http_address says it. NULL: no memory. Ends before the coordinator
// does.
struct coordinator_dashboard *coordinator_dashboard_new(struct coordinator *c, const char *address);
void coordinator_dashboard_free(struct coordinator_dashboard *dashboard); // NULL is allowed

// common_http_pages.answer; answerer: the dashboard.
void coordinator_dashboard_answer(void *answerer, const struct common_http_request *request,
                                  struct common_http_answer *out);

#endif
