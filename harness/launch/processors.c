#include "harness/launch/processors.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_BYTES = 512, LIST_BYTES = 4096 };

static bool read_line(const char *path, char *buffer, size_t size)
{
    FILE *file = fopen(path, "re");
    if (!file) return false;
    bool got = fgets(buffer, (int)size, file) != NULL;
    fclose(file);
    if (got) buffer[strcspn(buffer, "\n")] = '\0';
    return got;
}

/* ---- lists ------------------------------------------------------------------------------------ */

bool processors_parse(const char *text, cpu_set_t *out)
{
    CPU_ZERO(out);
    while (*text) {
        char *end;
        long first = strtol(text, &end, 10), last = first;
        if (end == text) return false;
        if (*end == '-') {
            text = end + 1;
            last = strtol(text, &end, 10);
            if (end == text) return false;
        }
        if (first < 0 || last < first || last >= CPU_SETSIZE || (*end && *end != ',')) return false;
        for (long p = first; p <= last; p++) CPU_SET((int)p, out);
        text = *end ? end + 1 : end;
    }
    return true;
}

char *processors_format(const cpu_set_t *set, char *buffer, size_t size)
{
    size_t length = 0;
    buffer[0] = '\0';
    for (int p = 0; p < CPU_SETSIZE && length < size; p++) {
        if (!CPU_ISSET(p, set)) continue;
        int last = p;
        while (last + 1 < CPU_SETSIZE && CPU_ISSET(last + 1, set)) last++;
        const char *comma = length > 0 ? "," : "";
        int wrote = last > p ? snprintf(buffer + length, size - length, "%s%d-%d", comma, p, last)
                             : snprintf(buffer + length, size - length, "%s%d", comma, p);
        length += (size_t)wrote;
        p = last;
    }
    return buffer;
}

char *processors_own(char *buffer, size_t size)
{
    cpu_set_t own;
    buffer[0] = '\0';
    return sched_getaffinity(0, sizeof own, &own) == 0 ? processors_format(&own, buffer, size) : buffer;
}

/* ---- cores ------------------------------------------------------------------------------------ */

static void siblings_of(const char *root, int processor, const cpu_set_t *allowed, cpu_set_t *out)
{
    char path[PATH_BYTES], list[LIST_BYTES];
    cpu_set_t all;
    snprintf(path, sizeof path, "%s/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", root, processor);
    bool known = read_line(path, list, sizeof list) && processors_parse(list, &all) && CPU_ISSET(processor, &all);
    if (known) {
        CPU_AND(out, &all, allowed);
    } else {
        CPU_ZERO(out);
        CPU_SET(processor, out);
    }
}

static int package_of(const char *root, int processor)
{
    char path[PATH_BYTES], line[32];
    snprintf(path, sizeof path, "%s/sys/devices/system/cpu/cpu%d/topology/physical_package_id", root, processor);
    return read_line(path, line, sizeof line) ? atoi(line) : 0;
}

static int compare_cores(const void *a, const void *b)
{
    const processor_core *x = a, *y = b;
    return x->package != y->package ? x->package - y->package : x->first - y->first;
}

static status find_cores(const char *root, processors *p)
{
    cpu_set_t left = p->allowed;
    p->cores = calloc((size_t)p->count, sizeof *p->cores);
    if (!p->cores) return fail(STATUS_SYSTEM, "no memory for a list of %d processors", p->count);
    for (int i = 0; i < CPU_SETSIZE; i++) {
        if (!CPU_ISSET(i, &left)) continue;
        processor_core *core = &p->cores[p->core_count++];
        *core = (processor_core){.package = package_of(root, i), .first = i};
        siblings_of(root, i, &left, &core->processors);
        CPU_XOR(&left, &left, &core->processors);
    }
    qsort(p->cores, (size_t)p->core_count, sizeof *p->cores, compare_cores);
    return STATUS_OK;
}

/* ---- control groups --------------------------------------------------------------------------- */

/* This process's group as a path below /sys/fs/cgroup, of version 2, or of `controller` in version 1. */
static bool find_group(const char *root, const char *controller, char *group, size_t size)
{
    char path[PATH_BYTES], line[PATH_BYTES];
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *file = fopen(path, "re");
    bool found = false;
    while (file && !found && fgets(line, sizeof line, file)) {
        char *names = strchr(line, ':'), *at = names ? strchr(names + 1, ':') : NULL;
        if (!at) continue;
        *at++ = '\0';
        at[strcspn(at, "\n")] = '\0';
        found = strcmp(names + 1, controller) == 0;
        if (found) snprintf(group, size, "%s", at);
    }
    if (file) fclose(file);
    return found;
}

/* Processors' worth of time in `folder`: cpu.max of version 2, the quota and period of version 1; 0: none. */
static double limit_in(const char *folder)
{
    char path[PATH_BYTES + 32], line[64];
    int64_t quota = 0, period = 0;
    snprintf(path, sizeof path, "%s/cpu.max", folder);
    if (read_line(path, line, sizeof line)) {
        if (sscanf(line, "%" SCNd64 " %" SCNd64, &quota, &period) != 2) return 0;
    } else {
        snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", folder);
        if (read_line(path, line, sizeof line)) quota = atoll(line);
        snprintf(path, sizeof path, "%s/cpu.cfs_period_us", folder);
        if (read_line(path, line, sizeof line)) period = atoll(line);
    }
    return quota > 0 && period > 0 ? (double)quota / (double)period : 0;
}

/* The least of the limits of a group and of those it lies in. Within a container the path may be one of the host's,
 * of which only the root can be seen. */
static double limit_of(const char *root, const char *mount, const char *controller)
{
    char group[PATH_BYTES / 2] = "", folder[PATH_BYTES];
    double least = 0;
    if (!find_group(root, controller, group, sizeof group)) return 0;
    for (;;) {
        snprintf(folder, sizeof folder, "%s%s%s", root, mount, group);
        double limit = limit_in(folder);
        if (limit > 0 && (least <= 0 || limit < least)) least = limit;
        char *slash = strrchr(group, '/');
        if (!slash) return least;
        *slash = '\0';
    }
}

static double find_limit(const char *root)
{
    static const char *const old[] = {"cpu", "cpu,cpuacct"};
    double limit = limit_of(root, "/sys/fs/cgroup", "");
    for (int i = 0; i < 2 && limit <= 0; i++) limit = limit_of(root, "/sys/fs/cgroup/cpu", old[i]);
    return limit;
}

/* The container's set, or all processors that are online. */
static bool read_whole_set(const char *root, cpu_set_t *out)
{
    char group[PATH_BYTES / 2] = "", path[PATH_BYTES], list[LIST_BYTES];
    if (find_group(root, "", group, sizeof group)) {
        snprintf(path, sizeof path, "%s/sys/fs/cgroup%s/cpuset.cpus.effective", root, group);
        if (read_line(path, list, sizeof list) && list[0] && processors_parse(list, out)) return true;
    }
    if (find_group(root, "cpuset", group, sizeof group)) {
        snprintf(path, sizeof path, "%s/sys/fs/cgroup/cpuset%s/cpuset.effective_cpus", root, group);
        if (read_line(path, list, sizeof list) && list[0] && processors_parse(list, out)) return true;
    }
    snprintf(path, sizeof path, "%s/sys/devices/system/cpu/online", root);
    return read_line(path, list, sizeof list) && processors_parse(list, out);
}

/* ---- life ------------------------------------------------------------------------------------- */

status processors_open(const char *root, const cpu_set_t *allowed, processors *out)
{
    cpu_set_t whole, used;
    *out = (processors){0};
    if (allowed) out->allowed = *allowed;
    else if (sched_getaffinity(0, sizeof out->allowed, &out->allowed) != 0)
        return fail_errno(STATUS_SYSTEM, "the processors that may be used (sched_getaffinity)");
    out->count = CPU_COUNT(&out->allowed);
    out->limit = find_limit(root);
    if (read_whole_set(root, &whole)) {
        CPU_AND(&used, &whole, &out->allowed);
        out->restricted = !CPU_EQUAL(&used, &whole);
    }
    return find_cores(root, out);
}

void processors_close(processors *p)
{
    free(p->cores);
    *p = (processors){0};
}

const char *const bind_names[] = {"none", "core", NULL};
const char *const bound_names[] = {"none", "core", "starter", NULL};

static int cores_that_take_part(const processors *p)
{
    int kept_at_work = p->limit > 0 ? (int)ceil(p->limit) : p->core_count;
    return kept_at_work < p->core_count ? kept_at_work : p->core_count;
}

void bind_choose(const processors *p, bind_group g, int member, cpu_set_t *out)
{
    int cores = cores_that_take_part(p), count = 0;
    for (int c = 0; c < cores; c++) count += CPU_COUNT(&p->cores[c].processors);
    int64_t wanted = (int64_t)g.members * g.threads;
    /* With fewer cores than threads a rank has processors for its threads, not cores. */
    int64_t each = wanted <= cores ? g.threads : ((int64_t)g.threads * cores + count - 1) / count;
    if (each > cores) each = cores;
    CPU_ZERO(out);
    for (int64_t i = 0; i < each; i++)
        CPU_OR(out, out, &p->cores[((int64_t)member * each + i) % cores].processors);
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
