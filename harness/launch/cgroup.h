/* What the control groups of this process leave it, of versions 1 and 2: containers and batch jobs limit
 * programs so. */
#ifndef HARNESS_LAUNCH_CGROUP_H
#define HARNESS_LAUNCH_CGROUP_H

/* Processors' worth of time (cpu.max), and bytes of memory (memory.max); 0: no limit. `root` is "" but in
 * tests: the folder in which "/sys" and "/proc" lie. */
double cgroup_processors(const char *root);
double cgroup_memory(const char *root);

#endif
