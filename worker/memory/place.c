// SPDX-License-Identifier: Apache-2.0
#include "worker/memory/place.h"

#include <errno.h>
#include <hwloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/log/log.h"

#define THREADS_MAX 256u // as --threads says
#define SLOTS_MAX   64u  // workers that take the same thing one after the other

struct node {
    hwloc_obj_t obj;
    hwloc_bitmap_t cpus; // that the process may use
    uint32_t cores;
};

struct worker_place {
    hwloc_topology_t topology;
    bool here;               // this machine, not one for a test
    hwloc_bitmap_t allowed;  // processors that the process may use
    struct node *nodes;      // those with any of them
    uint32_t n_nodes, cores; // of all nodes
    const struct node *node; // the preferred one; NULL: none
    bool interleave;         // memory over all nodes
    uint32_t threads;
    hwloc_bitmap_t *thread_cpus; // [threads]; NULL: not bound
    bool to_cores;
    bool (*claim)(void *arg, const char *name);
    void *claim_arg;
    int claims[THREADS_MAX + 2]; // sockets whose names are taken: a node, a device, a core per thread
    uint32_t n_claims;
};

// ---- what others took ---------------------------------------------------------------------------

static bool claim_here(void *arg, const char *name)
{
    struct worker_place *place = arg;
    struct sockaddr_un address = {.sun_family = AF_UNIX}; // sun_path[0] stays 0: no file
    int n = snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "banyan-worker/%s", name);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return true; // no sockets: as if there were no others
    if (bind(fd, (struct sockaddr *)&address,
             (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n)) == 0) {
        place->claims[place->n_claims++] = fd;
        return true;
    }
    bool taken = errno == EADDRINUSE;
    close(fd);
    return !taken;
}

bool worker_place_take(const struct worker_place *place, uint32_t slot, const char *what, uint32_t index)
{
    char name[64];
    snprintf(name, sizeof name, "%u/%s/%u", slot, what, index);
    return place->claim(place->claim_arg, name);
}

// ---- the machine --------------------------------------------------------------------------------

static uint32_t cores_in(hwloc_topology_t topology, hwloc_const_bitmap_t cpus)
{
    uint32_t cores = 0;
    for (hwloc_obj_t core = NULL; (core = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_CORE, core));)
        cores += hwloc_bitmap_intersects(core->cpuset, cpus);
    int processors = hwloc_bitmap_weight(cpus); // where cores cannot be seen
    return cores > 0 ? cores : processors > 0 ? (uint32_t)processors : 1;
}

static bool topology_load(struct worker_place *place, const struct worker_place_options *options)
{
    if (hwloc_topology_init(&place->topology) != 0)
        return false;
    if (options->synthetic && hwloc_topology_set_synthetic(place->topology, options->synthetic) != 0)
        return false;
    if (hwloc_topology_load(place->topology) != 0)
        return false;
    place->here = hwloc_topology_is_thissystem(place->topology) != 0;
    place->allowed = hwloc_bitmap_dup(hwloc_topology_get_allowed_cpuset(place->topology));
    hwloc_bitmap_t mine = hwloc_bitmap_alloc();
    if (!place->allowed || !mine) {
        hwloc_bitmap_free(mine);
        return false;
    }
    if (options->cpuset ? hwloc_bitmap_sscanf(mine, options->cpuset) == 0
                        : place->here && hwloc_get_cpubind(place->topology, mine, HWLOC_CPUBIND_PROCESS) == 0)
        hwloc_bitmap_and(place->allowed, place->allowed, mine);
    hwloc_bitmap_free(mine);
    return !hwloc_bitmap_iszero(place->allowed);
}

// Nodes that have processors for us. Of two nodes with the same processors (fast memory beside the usual)
// the first counts.
static bool find_nodes(struct worker_place *place)
{
    int n = hwloc_get_nbobjs_by_type(place->topology, HWLOC_OBJ_NUMANODE);
    place->nodes = calloc(n > 0 ? (size_t)n : 1, sizeof *place->nodes);
    if (!place->nodes)
        return false;
    hwloc_obj_t obj = NULL;
    while ((obj = hwloc_get_next_obj_by_type(place->topology, HWLOC_OBJ_NUMANODE, obj))) {
        struct node *node = &place->nodes[place->n_nodes];
        bool again = false;
        if (!obj->cpuset || !hwloc_bitmap_intersects(obj->cpuset, place->allowed))
            continue;
        for (uint32_t i = 0; i < place->n_nodes; i++)
            again |= hwloc_bitmap_isequal(place->nodes[i].obj->cpuset, obj->cpuset) != 0;
        if (again)
            continue;
        node->cpus = hwloc_bitmap_dup(obj->cpuset);
        if (!node->cpus)
            return false;
        hwloc_bitmap_and(node->cpus, node->cpus, place->allowed);
        node->obj = obj;
        node->cores = cores_in(place->topology, node->cpus);
        place->n_nodes++;
    }
    return true;
}

// How many processors' worth of time the cgroup and those above it allow (cpu.max); UINT32_MAX: no limit.
static uint32_t quota_here(void)
{
    char line[1024], path[1200] = "", file_name[1300];
    uint32_t least = UINT32_MAX;
    FILE *groups = fopen("/proc/self/cgroup", "re");
    while (groups && fgets(line, sizeof line, groups))
        if (strncmp(line, "0::", 3) == 0)
            snprintf(path, sizeof path, "/sys/fs/cgroup%.*s", (int)strcspn(line + 3, "\n"), line + 3);
    if (groups)
        fclose(groups);
    for (char *slash; (slash = strrchr(path, '/')) && strlen(path) >= strlen("/sys/fs/cgroup");
         *slash = '\0') {
        unsigned long long quota, period;
        snprintf(file_name, sizeof file_name, "%s/cpu.max", path);
        FILE *file = fopen(file_name, "re");
        if (file && fscanf(file, "%llu %llu", &quota, &period) == 2 && period > 0 && quota / period < least)
            least = (uint32_t)(quota / period) + (quota % period > 0);
        if (file)
            fclose(file);
    }
    return least > 0 ? least : 1;
}

// ---- choosing -----------------------------------------------------------------------------------

static enum common_code choose_node(struct worker_place *place, const struct worker_place_options *options,
                                    struct common_error *err)
{
    if (options->numa >= 0) {
        for (uint32_t i = 0; i < place->n_nodes; i++)
            if (place->nodes[i].obj->os_index == (unsigned)options->numa)
                place->node = &place->nodes[i];
        return place->node ? COMMON_OK
                           : common_error_set(err, COMMON_INVALID_ARGUMENT,
                                              "--numa %d: there is no such node with processors that this "
                                              "process may use",
                                              options->numa);
    }
    if (place->n_nodes <= 1)
        return COMMON_OK;
    uint32_t most = 0;
    for (uint32_t i = 0; i < place->n_nodes; i++)
        most = place->nodes[i].cores > most ? place->nodes[i].cores : most;
    place->interleave = options->numa == WORKER_NUMA_NONE || options->threads > most;
    for (uint32_t slot = 0; !place->interleave && slot < SLOTS_MAX; slot++) {
        for (uint32_t i = 0; i < place->n_nodes; i++) {
            const struct node *node = &place->nodes[i];
            if (node->cores < options->threads ||
                !worker_place_take(place, slot, "node", node->obj->os_index))
                continue;
            place->node = node;
            return COMMON_OK;
        }
    }
    place->interleave = true; // asked for, or everything was taken again and again
    return COMMON_OK;
}

static hwloc_const_bitmap_t cpus_of(const struct worker_place *place)
{
    return place->node ? place->node->cpus : place->allowed;
}

// A core for each thread: those that the fewest workers took come first, none twice before each was taken
// once.
static bool take_cores(struct worker_place *place)
{
    hwloc_const_bitmap_t cpus = cpus_of(place);
    hwloc_bitmap_t left = hwloc_bitmap_dup(cpus); // processors of cores without a thread in this round
    if (!left)
        return false;
    for (uint32_t done = 0, slot = 0; done < place->threads; slot++) {
        bool some = false;
        for (hwloc_obj_t core = NULL;
             done < place->threads &&
             (core = hwloc_get_next_obj_by_type(place->topology, HWLOC_OBJ_CORE, core));) {
            if (!hwloc_bitmap_intersects(core->cpuset, left))
                continue;
            some = true;
            if (slot < SLOTS_MAX && !worker_place_take(place, slot, "core", core->logical_index))
                continue;
            hwloc_bitmap_t own = hwloc_bitmap_dup(core->cpuset);
            if (!own) {
                hwloc_bitmap_free(left);
                return false;
            }
            hwloc_bitmap_and(own, own, cpus);
            hwloc_bitmap_andnot(left, left, core->cpuset);
            place->thread_cpus[done++] = own;
        }
        if (!some) {
            hwloc_bitmap_copy(left, cpus);
            slot = 0;
        }
    }
    hwloc_bitmap_free(left);
    return true;
}

static bool choose_cpus(struct worker_place *place, enum worker_bind bind)
{
    bool one_each = place->threads == cores_in(place->topology, cpus_of(place));
    place->to_cores = (bind == WORKER_BIND_CORES || (bind == WORKER_BIND_AUTO && one_each)) &&
                      hwloc_get_nbobjs_by_type(place->topology, HWLOC_OBJ_CORE) > 0;
    if (!place->to_cores && (bind == WORKER_BIND_NONE || !place->node))
        return true;
    place->thread_cpus = calloc(place->threads, sizeof(hwloc_bitmap_t));
    if (!place->thread_cpus)
        return false;
    if (place->to_cores)
        return take_cores(place);
    for (uint32_t i = 0; i < place->threads; i++)
        if (!(place->thread_cpus[i] = hwloc_bitmap_dup(place->node->cpus)))
            return false;
    return true;
}

enum common_code worker_place_new(const struct worker_place_options *options, struct worker_place **out,
                                  struct common_error *err)
{
    struct worker_place *place = calloc(1, sizeof *place);
    enum common_code code = COMMON_RESOURCE_EXHAUSTED;
    if (!place)
        return common_error_set(err, code, "the system has no memory");
    place->claim = options->claim ? options->claim : claim_here;
    place->claim_arg = options->claim ? options->claim_arg : place;
    if (!topology_load(place, options)) {
        code = common_error_set(err, COMMON_FAILED_PRECONDITION,
                                "hwloc cannot see this machine's processors: set HWLOC_XMLFILE or "
                                "HWLOC_SYNTHETIC in the environment");
        goto fail;
    }
    if (!find_nodes(place))
        goto no_memory;
    place->cores = cores_in(place->topology, place->allowed);
    code = choose_node(place, options, err);
    if (code != COMMON_OK)
        goto fail;
    uint32_t quota = options->quota ? options->quota : place->here ? quota_here() : UINT32_MAX;
    place->threads = options->threads ? options->threads : place->node ? place->node->cores : place->cores;
    if (options->threads == 0 && place->threads > quota)
        place->threads = quota;
    if (place->threads > THREADS_MAX)
        place->threads = THREADS_MAX;
    if (!choose_cpus(place, options->bind))
        goto no_memory;
    *out = place;
    return COMMON_OK;
no_memory:
    code = common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "the system has no memory");
fail:
    worker_place_free(place);
    return code;
}

void worker_place_free(struct worker_place *place)
{
    if (!place)
        return;
    for (uint32_t i = 0; i < place->n_claims; i++)
        close(place->claims[i]);
    for (uint32_t i = 0; place->thread_cpus && i < place->threads; i++)
        hwloc_bitmap_free(place->thread_cpus[i]);
    for (uint32_t i = 0; i < place->n_nodes; i++)
        hwloc_bitmap_free(place->nodes[i].cpus);
    hwloc_bitmap_free(place->allowed);
    if (place->topology)
        hwloc_topology_destroy(place->topology);
    free(place->thread_cpus);
    free(place->nodes);
    free(place);
}

// ---- what was chosen ----------------------------------------------------------------------------

uint32_t worker_place_threads(const struct worker_place *place)
{
    return place->threads;
}

uint32_t worker_place_processors(const struct worker_place *place)
{
    return (uint32_t)hwloc_bitmap_weight(place->allowed);
}

uint64_t worker_place_memory(const struct worker_place *place)
{
    return place->node ? place->node->obj->attr->numanode.local_memory
                       : hwloc_get_root_obj(place->topology)->total_memory;
}

const char *worker_place_text(const struct worker_place *place, char out[WORKER_PLACE_TEXT])
{
    char cores[64] = "", node[32];
    hwloc_bitmap_t used = place->to_cores ? hwloc_bitmap_alloc() : NULL;
    for (uint32_t i = 0; used && i < place->threads; i++)
        hwloc_bitmap_or(used, used, place->thread_cpus[i]);
    if (used)
        hwloc_bitmap_list_snprintf(cores, sizeof cores, used);
    hwloc_bitmap_free(used);
    if (place->node)
        snprintf(node, sizeof node, "%u", place->node->obj->os_index);
    else
        snprintf(node, sizeof node, "%s", place->interleave ? "all" : "any");
    snprintf(out, WORKER_PLACE_TEXT, "cores=%u node=%s bind=%s%s", place->cores, node,
             place->to_cores      ? "cores:"
             : place->thread_cpus ? "node"
                                  : "none",
             cores);
    return out;
}

const char *worker_place_thread_text(const struct worker_place *place, uint32_t thread,
                                     char out[WORKER_PLACE_TEXT])
{
    hwloc_bitmap_snprintf(out, WORKER_PLACE_TEXT,
                          place->thread_cpus ? place->thread_cpus[thread] : place->allowed);
    return out;
}

const char *worker_place_memory_text(const struct worker_place *place, char out[WORKER_PLACE_TEXT])
{
    size_t n = 0;
    out[0] = '\0';
    if (place->interleave)
        n = (size_t)snprintf(out, WORKER_PLACE_TEXT, "interleave:");
    if (place->node || place->interleave)
        hwloc_bitmap_snprintf(out + n, WORKER_PLACE_TEXT - n,
                              place->node ? place->node->obj->nodeset
                                          : hwloc_topology_get_allowed_nodeset(place->topology));
    return out;
}

void worker_place_bind_compute(const struct worker_place *place, uint32_t thread)
{
    if (place->here && place->thread_cpus && thread < place->threads &&
        hwloc_set_cpubind(place->topology, place->thread_cpus[thread], HWLOC_CPUBIND_THREAD) != 0)
        common_log_debug("thread=%u is not bound: %s", thread, strerror(errno));
}

void worker_place_bind_other(const struct worker_place *place)
{
    if (place->here && place->thread_cpus && place->node &&
        hwloc_set_cpubind(place->topology, place->node->cpus, HWLOC_CPUBIND_THREAD) != 0)
        common_log_debug("the loop is not bound: %s", strerror(errno));
}

void worker_place_bind_memory(const struct worker_place *place, void *memory, size_t bytes)
{
    if (!place->here || (!place->node && !place->interleave))
        return;
    // Without STRICT: other nodes serve when this one is full.
    if (hwloc_set_area_membind(
            place->topology, memory, bytes,
            place->node ? place->node->obj->nodeset : hwloc_topology_get_allowed_nodeset(place->topology),
            place->node ? HWLOC_MEMBIND_BIND : HWLOC_MEMBIND_INTERLEAVE, HWLOC_MEMBIND_BYNODESET) != 0)
        common_log_debug("memory is not bound: %s", strerror(errno));
}
