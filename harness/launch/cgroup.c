#include "harness/launch/cgroup.h"

#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Reads a file without allocating, because a failed allocation must not look like a missing limit. The
 * kernel returns at most a page at a time. */
static bool read_file(const char *folder, const char *name, char *buffer, size_t size)
{
    char path[CGROUP_PATH];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    size_t length = 0;
    ssize_t got;
    while (fd >= 0 && (got = read(fd, buffer + length, size - 1 - length)) > 0) length += (size_t)got;
    if (fd >= 0) close(fd);
    buffer[length] = '\0';
    return length > 0;
}

bool cgroup_read_list(const char *folder, const char *name, cpu_set_t *out)
{
    char line[4096], *at = line;
    CPU_ZERO(out);
    if (!read_file(folder, name, line, sizeof line)) return false;
    for (char *part; (part = strsep(&at, ",")) != NULL;) {
        int first = 0, last = 0, got = sscanf(part, "%d-%d", &first, &last);
        for (int i = first; got > 0 && i <= (got > 1 ? last : first); i++)
            if (i >= 0 && i < CPU_SETSIZE) CPU_SET(i, out);
    }
    return true;
}

/* Returns the quota divided by the period, or 0 if there is no limit. Reads version 2 or version 1. */
static double processors_in(const char *folder)
{
    char line[64];
    double quota = 0, period = 0;
    if (read_file(folder, "cpu.max", line, sizeof line)) {
        sscanf(line, "%lf %lf", &quota, &period); /* the line is "max 100000" if there is no limit */
    } else if (read_file(folder, "cpu.cfs_quota_us", line, sizeof line)) {
        quota = atof(line);
        if (read_file(folder, "cpu.cfs_period_us", line, sizeof line)) period = atof(line);
    }
    return quota > 0 && period > 0 ? quota / period : 0;
}

/* Returns the limit in bytes, or 0. If there is no limit, version 2 has "max", and version 1 has a number
 * larger than any memory. */
static double memory_in(const char *folder)
{
    char line[64];
    bool got = read_file(folder, "memory.max", line, sizeof line) ||
               read_file(folder, "memory.limit_in_bytes", line, sizeof line);
    return got ? atof(line) : 0;
}

static double cpuset_in(const char *folder)
{
    cpu_set_t set;
    if (!cgroup_read_list(folder, "cpuset.cpus.effective", &set))
        cgroup_read_list(folder, "cpuset.cpus", &set);
    return CPU_COUNT(&set);
}

/* Returns the count in a file of the kernel, or -1 if there is none. */
static double oom_kills_of(const char *folder, const char *name)
{
    char text[16384];
    const char *found = read_file(folder, name, text, sizeof text) ? strstr(text, "oom_kill ") : NULL;
    return found ? atof(found + strlen("oom_kill ")) : -1;
}

static double oom_kills_in(const char *folder)
{
    double kills = oom_kills_of(folder, "memory.events.local");
    return kills < 0 ? oom_kills_of(folder, "memory.oom_control") : kills;
}

/* Limit or count of control groups. The limit is the lowest one of a group and all groups that contain it.
 * The count comes from the nearest group that counts. */
typedef struct resource {
    double (*value_in)(const char *folder); /* 0 if there is no limit, negative if there is no count */
    bool is_count;
    /* Name of the controller in version 1 of control groups. /proc/self/cgroup lists it, and the folder of
     * its hierarchy has the same name. */
    const char *controller;
} resource;

/* Reads a group and all groups that contain it. In a container the path may be valid only on the host. The
 * container then sees only the root of the hierarchy. */
static void climb(const resource *r, const char *root, const char *controller, char *group, double *found)
{
    for (char folder[CGROUP_PATH];;) {
        snprintf(folder, sizeof folder, "%s/sys/fs/cgroup/%s%s", root, controller, group);
        double value = r->value_in(folder);
        if (r->is_count ? *found < 0 : value > 0 && (*found <= 0 || value < *found)) *found = value;
        char *slash = strrchr(group, '/');
        if (!slash) return;
        *slash = '\0';
    }
}

/* Finds the limit or the count in the groups of this process. Lines of /proc/self/cgroup are
 * NUMBER:CONTROLLERS:GROUP, without controllers for version 2. Controllers that share a group, such as
 * "cpu,cpuacct", have a folder under the name of the first. */
static double find(resource r, const char *root)
{
    char lines[4096], *next = lines, *group;
    double found = r.is_count ? -1 : 0;
    read_file(root, "proc/self/cgroup", lines, sizeof lines);
    while ((group = strsep(&next, "\n")) != NULL) {
        strsep(&group, ":");
        char *controllers = strsep(&group, ":");
        const char *first = strsep(&controllers, ",");
        if (group && (!*first || strcmp(first, r.controller) == 0)) climb(&r, root, first, group, &found);
    }
    return found;
}

double cgroup_processors(const char *root)
{
    return find((resource){processors_in, false, "cpu"}, root);
}

double cgroup_memory(const char *root)
{
    return find((resource){memory_in, false, "memory"}, root);
}

int cgroup_cpuset(const char *root)
{
    return (int)find((resource){cpuset_in, false, "cpuset"}, root);
}

int64_t cgroup_oom_kills(const char *root)
{
    double found = find((resource){oom_kills_in, true, "memory"}, root);
    return (int64_t)(found < 0 ? oom_kills_of(root, "proc/vmstat") : found);
}
