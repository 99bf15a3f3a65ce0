#include "harness/launch/processors.h"

#include "common/base/clock.h"
#include "harness/launch/cgroup.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/times.h>
#include <unistd.h>

char *processors_format(const cpu_set_t *set, char *buffer, size_t size)
{
    size_t used = 0;
    buffer[0] = '\0';
    for (int i = 0; i < CPU_SETSIZE && used < size; i++) {
        if (!CPU_ISSET(i, set)) continue;
        int first = i;
        while (i + 1 < CPU_SETSIZE && CPU_ISSET(i + 1, set)) i++;
        used += (size_t)snprintf(buffer + used, size - used, "%s%d", used ? "," : "", first);
        if (i > first && used < size) used += (size_t)snprintf(buffer + used, size - used, "-%d", i);
    }
    return buffer;
}

char *processors_own(char *buffer, size_t size)
{
    cpu_set_t own;
    buffer[0] = '\0';
    return sched_getaffinity(0, sizeof own, &own) == 0 ? processors_format(&own, buffer, size) : buffer;
}

/* ---- processor time ---------------------------------------------------------------------------- */

/* Adds up the busy time of the allowed processors, in ticks. Returns NaN if /proc/stat cannot be read, or if
 * a control group limits this process to fewer processors, because other programs may then run without
 * slowing this one. */
static double busy_ticks(void)
{
    cpu_set_t own;
    char line[512];
    double sum = NAN;
    FILE *file = fopen("/proc/stat", "r");
    bool known =
        file && sched_getaffinity(0, sizeof own, &own) == 0 && processors_usable() >= CPU_COUNT(&own);
    while (known && fgets(line, sizeof line, file)) {
        double t[8]; /* user, nice, kernel, idle, waiting, interrupts (hard and soft), stolen */
        int number;
        if (sscanf(line, "cpu%d %lf %lf %lf %lf %lf %lf %lf %lf", &number, t, t + 1, t + 2, t + 3, t + 4,
                   t + 5, t + 6, t + 7) != 9 ||
            number >= CPU_SETSIZE || !CPU_ISSET(number, &own))
            continue;
        sum = (isnan(sum) ? 0 : sum) + t[0] + t[1] + t[2] + t[5] + t[6] + t[7];
    }
    if (file) fclose(file);
    return sum;
}

processor_time processors_time(void)
{
    double tick = 1.0 / (double)sysconf(_SC_CLK_TCK);
    struct tms t;
    times(&t);
    return (processor_time){.wall_s = 1e-9 * (double)clock_now_ns(),
                            .busy_s = tick * busy_ticks(),
                            .own_s =
                                tick * (double)(t.tms_utime + t.tms_stime + t.tms_cutime + t.tms_cstime)};
}

double processors_of_others(const processor_time *begin)
{
    processor_time end = processors_time();
    double others = (end.busy_s - begin->busy_s - (end.own_s - begin->own_s)) / (end.wall_s - begin->wall_s);
    return others < 0 ? 0 : others;
}

/* ---- cores ------------------------------------------------------------------------------------ */

/* Reads which of the processors `left` share a core or package with `processor`. If /sys does not say, sets
 * `out` to `processor` alone and returns false. */
static bool read_siblings(const char *root, int processor, const char *name, const cpu_set_t *left,
                          cpu_set_t *out)
{
    char folder[CGROUP_PATH];
    snprintf(folder, sizeof folder, "%s/sys/devices/system/cpu/cpu%d/topology", root, processor);
    bool known = cgroup_read_list(folder, name, out);
    CPU_SET(processor, out);
    CPU_AND(out, out, left);
    return known;
}

/* Lists the cores package by package. Reads /sys without allocating, because a failed allocation must not
 * look like a machine without cores. */
static status find_cores(const char *root, processors *p)
{
    cpu_set_t left = p->allowed, online, package, core;
    bool knows_cores = false;
    p->cores = calloc((size_t)p->count, sizeof *p->cores);
    if (!p->cores) return fail(STATUS_SYSTEM, "no memory for the cores of %d processors", p->count);
    for (int first = 0; first < CPU_SETSIZE; first++) {
        if (!CPU_ISSET(first, &left)) continue;
        read_siblings(root, first, "core_siblings_list", &left, &package);
        for (int i = first; i < CPU_SETSIZE; i++) {
            if (!CPU_ISSET(i, &package) || !CPU_ISSET(i, &left)) continue;
            knows_cores |= read_siblings(root, i, "thread_siblings_list", &left, &core);
            p->cores[p->core_count++] = core;
            CPU_XOR(&left, &left, &core);
        }
    }
    int set = cgroup_cpuset(root);
    if (set == 0 && cgroup_read_list(root, "sys/devices/system/cpu/online", &online))
        set = CPU_COUNT(&online);
    p->restricted = knows_cores && p->count < set;
    return STATUS_OK;
}

status processors_open(const char *root, const cpu_set_t *allowed, processors *out)
{
    *out = (processors){.limit = cgroup_processors(root)};
    if (allowed)
        out->allowed = *allowed;
    else if (sched_getaffinity(0, sizeof out->allowed, &out->allowed) != 0)
        return fail_errno(STATUS_SYSTEM, "the processors that may be used (sched_getaffinity)");
    out->count = CPU_COUNT(&out->allowed);
    return find_cores(root, out);
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
    /* If there are fewer cores than threads, a thread of a rank counts as one hardware thread, not as one
     * core. */
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
    cpu_set_t set;
    TRY(processors_open("", NULL, &p));
    *out = p.restricted ? BOUND_BY_STARTER : mode == BIND_CORE ? BOUND_BY_HARNESS : BOUND_BY_NONE;
    bind_choose(&p, g, local_rank, &set);
    processors_close(&p);
    if (*out == BOUND_BY_HARNESS && sched_setaffinity(0, sizeof set, &set) != 0)
        return fail_errno(STATUS_SYSTEM, "local rank %d cannot be bound", local_rank);
    return STATUS_OK;
}
