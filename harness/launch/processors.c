#include "harness/launch/processors.h"

#include "harness/launch/cgroup.h"

#include <hwloc.h>
#include <hwloc/glibc-sched.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* NULL: no memory. The caller frees it. */
static hwloc_bitmap_t bitmap_of(const cpu_set_t *set)
{
    hwloc_bitmap_t out = hwloc_bitmap_alloc();
    if (out) hwloc_cpuset_from_glibc_sched_affinity(NULL, out, set, sizeof *set);
    return out;
}

char *processors_format(const cpu_set_t *set, char *buffer, size_t size)
{
    hwloc_bitmap_t bits = bitmap_of(set);
    buffer[0] = '\0';
    if (bits) hwloc_bitmap_list_snprintf(buffer, size, bits);
    hwloc_bitmap_free(bits);
    return buffer;
}

char *processors_own(char *buffer, size_t size)
{
    cpu_set_t own;
    buffer[0] = '\0';
    return sched_getaffinity(0, sizeof own, &own) == 0 ? processors_format(&own, buffer, size) : buffer;
}

/* ---- cores ------------------------------------------------------------------------------------ */

/* Where the system reports no cores (topology: NULL), every processor is one. */
static void list_cores(hwloc_topology_t topology, processors *p)
{
    cpu_set_t left = p->allowed;
    for (hwloc_obj_t o = NULL;
         topology && (o = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_CORE, o)) != NULL;) {
        cpu_set_t *core = &p->cores[p->core_count++];
        hwloc_cpuset_to_glibc_sched_affinity(topology, o->cpuset, core, sizeof *core);
        CPU_XOR(&left, &left, core);
    }
    for (int i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, &left)) CPU_SET(i, &p->cores[p->core_count++]);
}

/* hwloc's topology holds the container's processors; what is left after it is restricted to the allowed ones
 * is ours. */
static status find_cores(processors *p)
{
    hwloc_topology_t topology = NULL;
    hwloc_bitmap_t allowed = bitmap_of(&p->allowed);
    p->cores = calloc((size_t)p->count, sizeof *p->cores);
    status rc = STATUS_OK;
    if (!allowed || !p->cores || hwloc_topology_init(&topology) != 0 ||
        hwloc_topology_set_flags(topology, HWLOC_TOPOLOGY_FLAG_DONT_CHANGE_BINDING) != 0 ||
        hwloc_topology_load(topology) != 0) {
        rc = fail_errno(STATUS_SYSTEM, "the cores of %d processors", p->count);
    } else {
        bool knows_cores = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE) > 0;
        p->restricted =
            knows_cores && !hwloc_bitmap_isincluded(hwloc_topology_get_topology_cpuset(topology), allowed);
        list_cores(hwloc_topology_restrict(topology, allowed, 0) == 0 ? topology : NULL, p);
    }
    if (topology) hwloc_topology_destroy(topology);
    hwloc_bitmap_free(allowed);
    return rc;
}

status processors_open(const char *root, const cpu_set_t *allowed, processors *out)
{
    *out = (processors){.limit = cgroup_processors(root)};
    if (allowed)
        out->allowed = *allowed;
    else if (sched_getaffinity(0, sizeof out->allowed, &out->allowed) != 0)
        return fail_errno(STATUS_SYSTEM, "the processors that may be used (sched_getaffinity)");
    out->count = CPU_COUNT(&out->allowed);
    return find_cores(out);
}

void processors_close(processors *p)
{
    free(p->cores);
    *p = (processors){0};
}

static int limited_by(double limit, int count)
{
    int busy = limit > 0 ? (int)ceil(limit) : count;
    return busy < count ? busy : count;
}

int processors_usable(void)
{
    cpu_set_t own;
    if (sched_getaffinity(0, sizeof own, &own) != 0) return 1;
    return limited_by(cgroup_processors(""), CPU_COUNT(&own));
}

int processors_cores(const processors *p)
{
    return limited_by(p->limit, p->core_count);
}

/* ---- binding ---------------------------------------------------------------------------------- */

const char *const bind_names[] = {"none", "core", NULL};
const char *const bound_names[] = {"none", "core", "starter", NULL};

void bind_choose(const processors *p, bind_group g, int member, cpu_set_t *out)
{
    int cores = processors_cores(p), count = 0;
    for (int c = 0; c < cores; c++) count += CPU_COUNT(&p->cores[c]);
    int64_t wanted = (int64_t)g.members * g.threads;
    /* With fewer cores than threads a rank has processors for its threads, not cores. */
    int64_t each = wanted <= cores ? g.threads : ((int64_t)g.threads * cores + count - 1) / count;
    if (each > cores) each = cores;
    CPU_ZERO(out);
    for (int64_t i = 0; i < each; i++) CPU_OR(out, out, &p->cores[((int64_t)member * each + i) % cores]);
}

status bind_plan(bind_mode mode, bind_group g, cpu_set_t **sets)
{
    processors p;
    *sets = NULL;
    if (mode == BIND_NONE) return STATUS_OK;
    TRY(processors_open("", NULL, &p));
    cpu_set_t *all = calloc((size_t)g.members, sizeof *all);
    for (int m = 0; all && m < g.members; m++) bind_choose(&p, g, m, &all[m]);
    processors_close(&p);
    *sets = all;
    return all ? STATUS_OK : fail(STATUS_SYSTEM, "no memory for the processors of %d ranks", g.members);
}

status bind_self(bind_mode mode, bind_group g, int local_rank, bound_by *out)
{
    processors p;
    status rc = STATUS_OK;
    *out = BOUND_BY_NONE;
    TRY(processors_open("", NULL, &p));
    if (p.restricted) {
        *out = BOUND_BY_STARTER;
    } else if (mode == BIND_CORE) {
        cpu_set_t set;
        bind_choose(&p, g, local_rank, &set);
        *out = BOUND_BY_HARNESS;
        if (sched_setaffinity(0, sizeof set, &set) != 0)
            rc = fail_errno(STATUS_SYSTEM, "local rank %d cannot be bound", local_rank);
    }
    processors_close(&p);
    return rc;
}
