/* What the control groups of this process leave it, of versions 1 and 2: containers and batch jobs limit
 * programs so. */
#ifndef HARNESS_LAUNCH_CGROUP_H
#define HARNESS_LAUNCH_CGROUP_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>

/* Processors' worth of time (cpu.max), and bytes of memory (memory.max); 0: no limit. `root` is "" but in
 * tests: the folder in which "/sys" and "/proc" lie. */
double cgroup_processors(const char *root);
double cgroup_memory(const char *root);
/* Returns the number of processors in the container's set (cpuset), or 0 if there is no set. */
int cgroup_cpuset(const char *root);
/* Returns how many processes of this group the kernel has killed for lack of memory, of the whole machine
 * where groups do not count them; -1: nobody counts. */
int64_t cgroup_oom_kills(const char *root);

/* Reads a file that lists processors as the kernel does, "0,2-3". Returns false if it cannot be read.
 * Allocates nothing. */
enum { CGROUP_PATH = 512 };
bool cgroup_read_list(const char *folder, const char *name, cpu_set_t *out);

#endif
