// SPDX-License-Identifier: Apache-2.0
#include "tests/chaos/net.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

static struct host {
    pid_t pid; // holds the namespace
    char address[20], net[48];
    const char *enter[4];
} hosts[NET_HOSTS];

__attribute__((format(printf, 1, 2))) static bool run(const char *format, ...)
{
    char command[256];
    va_list args;
    va_start(args, format);
    vsnprintf(command, sizeof(command), format, args);
    va_end(args);
    return system(command) == 0; // fixed words and numbers
}

static bool make_host(int i)
{
    struct host *h = &hosts[i];
    int ready[2];
    char c;
    if (pipe(ready) != 0)
        return false;
    h->pid = fork();
    if (h->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (unshare(CLONE_NEWNET) != 0 || write(ready[1], "x", 1) != 1)
            _exit(1);
        for (;;)
            pause();
    }
    close(ready[1]);
    bool there = h->pid > 0 && read(ready[0], &c, 1) == 1;
    close(ready[0]);
    snprintf(h->address, sizeof(h->address), "10.77.0.%d", i + 2);
    snprintf(h->net, sizeof(h->net), "--net=/proc/%d/ns/net", (int)h->pid);
    h->enter[0] = "/usr/bin/nsenter";
    h->enter[1] = h->net;
    return there &&
           run("ip link add host%d type veth peer name eth0 address 02:00:00:00:00:0%d netns %d", i, i + 2,
               (int)h->pid) &&
           run("ip link set host%d master chaos up", i) &&
           run("nsenter %s ip addr add %s/24 dev eth0", h->net, h->address) &&
           run("nsenter %s ip link set eth0 up", h->net) && run("nsenter %s ip link set lo up", h->net);
}

const char *net_start(void)
{
    if (geteuid() != 0)
        return "not root";
    if (access("/usr/bin/nsenter", X_OK) != 0)
        return "no nsenter";
    if (unshare(CLONE_NEWNET) != 0)
        return strerror(errno);
    bool made = run("ip link set lo up && ip link add chaos type bridge 2>/dev/null") &&
                run("ip addr add " NET_HERE "/24 dev chaos && ip link set chaos up");
    for (int i = 0; made && i < NET_HOSTS; i++)
        made = make_host(i);
    return made ? NULL : "no bridge and no veth pairs here";
}

const char *net_address(int host)
{
    return hosts[host].address;
}

const char *const *net_enter(int host)
{
    return hosts[host].enter;
}

// To an address without a host: packets go and do not arrive.
static void mislead(int host, int about)
{
    run("nsenter %s ip neigh replace %s lladdr 02:00:00:00:00:99 nud permanent dev eth0", hosts[host].net,
        hosts[about].address);
}

void net_cut(enum net_cut how, int host)
{
    if (how == NET_FROM_ALL) {
        run("ip link set host%d down", host);
        return;
    }
    mislead(0, 1);
    mislead(1, 0);
}

void net_heal(void)
{
    for (int i = 0; i < NET_HOSTS; i++) {
        run("ip link set host%d up", i);
        run("nsenter %s ip neigh del %s dev eth0 2>/dev/null", hosts[i].net, hosts[1 - i].address);
    }
}
