#include "harness/launch/cgroup.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_BYTES = 512 };

static bool read_line(const char *folder, const char *name, char *buffer, size_t size)
{
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "re");
    bool got = file && fgets(buffer, (int)size, file);
    if (file) fclose(file);
    return got;
}

/* The quota and period of version 2, or of version 1. */
static double processors_in(const char *folder)
{
    char line[64];
    double quota = 0, period = 0;
    if (read_line(folder, "cpu.max", line, sizeof line)) {
        sscanf(line, "%lf %lf", &quota, &period); /* "max 100000" where there is no limit */
    } else if (read_line(folder, "cpu.cfs_quota_us", line, sizeof line)) {
        quota = atof(line);
        if (read_line(folder, "cpu.cfs_period_us", line, sizeof line)) period = atof(line);
    }
    return quota > 0 && period > 0 ? quota / period : 0;
}

/* Version 2 has "max" where there is no limit, version 1 a number beyond all memory. */
static double memory_in(const char *folder)
{
    char line[64];
    bool got = read_line(folder, "memory.max", line, sizeof line) ||
               read_line(folder, "memory.limit_in_bytes", line, sizeof line);
    return got ? atof(line) : 0;
}

/* A resource, and where the hierarchies that limit it are mounted. */
typedef struct resource {
    double (*limit_in)(const char *folder);
    const char *mounts[3][2]; /* controllers as in /proc/self/cgroup, folder */
} resource;

/* Lowers *least to the limits of a group and of those that contain it. Within a container the path may be one
 * of the host's, of which only the root can be seen. */
static void lower_limit(const resource *r, const char *root, const char *mount, char *group, double *least)
{
    for (char folder[PATH_BYTES];;) {
        snprintf(folder, sizeof folder, "%s/sys/fs/cgroup%s%s", root, mount, group);
        double limit = r->limit_in(folder);
        if (limit > 0 && (*least <= 0 || limit < *least)) *least = limit;
        char *slash = strrchr(group, '/');
        if (!slash) return;
        *slash = '\0';
    }
}

/* Lines of /proc/self/cgroup are NUMBER:CONTROLLERS:GROUP, without controllers for version 2. */
static double find_limit(const resource *r, const char *root)
{
    char path[PATH_BYTES], line[PATH_BYTES / 2];
    double least = 0;
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file)) {
        char *group = line;
        line[strcspn(line, "\n")] = '\0';
        strsep(&group, ":");
        const char *controllers = strsep(&group, ":");
        for (int i = 0; group && i < 3; i++)
            if (r->mounts[i][0] && strcmp(controllers, r->mounts[i][0]) == 0)
                lower_limit(r, root, r->mounts[i][1], group, &least);
    }
    if (file) fclose(file);
    return least;
}

double cgroup_processors(const char *root)
{
    static const resource cpu = {processors_in, {{"", ""}, {"cpu", "/cpu"}, {"cpu,cpuacct", "/cpu"}}};
    return find_limit(&cpu, root);
}

double cgroup_memory(const char *root)
{
    static const resource memory = {memory_in, {{"", ""}, {"memory", "/memory"}}};
    return find_limit(&memory, root);
}
