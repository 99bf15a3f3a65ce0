/* Reads the limits that containers and batch jobs set: the control groups of this process, version 1 or 2. */
#ifndef HARNESS_LAUNCH_CGROUP_H
#define HARNESS_LAUNCH_CGROUP_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>

/* Return the limit on processor time, as a number of processors (cpu.max), and the limit on memory in bytes
 * (memory.max). Return 0 if there is no limit. `root` is "" or, in tests, a folder that contains "/sys" and
 * "/proc". */
double cgroup_processors(const char *root);
double cgroup_memory(const char *root);
/* Returns the number of processors in the container's set (cpuset), or 0 if there is no set. */
int cgroup_cpuset(const char *root);
/* Returns how many processes of this group the kernel has killed for lack of memory. If the kernel has no
 * count per group, returns the count of the whole machine, or -1 if there is no count. */
int64_t cgroup_oom_kills(const char *root);

/* Reads a file that lists processors in the kernel's format, such as "0,2-3". Returns false if the file
 * cannot be read. Allocates nothing. */
enum { CGROUP_PATH = 512 };
bool cgroup_read_list(const char *folder, const char *name, cpu_set_t *out);

#endif
