#include "tests/common/net/net_test.h"

#include "harness/launch/cgroup.h"
#include "harness/launch/processors.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- a machine made of files --------------------------------------------------------------------- */

static char root[] = "machine-XXXXXX";

static void write_file(const char *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void write_file(const char *text, const char *format, ...)
{
    char path[256];
    int length = snprintf(path, sizeof path, "%s/", root);
    va_list args;
    va_start(args, format);
    vsnprintf(path + length, sizeof path - (size_t)length, format, args);
    va_end(args);
    for (char *slash = strchr(path, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        if (mkdir(path, 0700) != 0 && errno != EEXIST) fail_msg("%s: %s", path, strerror(errno));
        *slash = '/';
    }
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void remove_machine(void)
{
    char command[64];
    snprintf(command, sizeof command, "rm -rf %s", root);
    assert_int_equal(system(command), 0);
}

/* Makes a machine whose processors are numbered as Linux does: first one hardware thread of each core, then
 * the second threads of all cores. If there are two packages, the second one has the processors with odd
 * numbers. */
static void make_machine(int packages, int cores, int threads)
{
    char text[64];
    snprintf(root, sizeof root, "machine-XXXXXX");
    assert_non_null(mkdtemp(root));
    for (int i = 0; i < cores * threads; i++) {
        size_t used = 0;
        for (int k = i % cores; k < cores * threads; k += cores)
            used += (size_t)snprintf(text + used, sizeof text - used, "%s%d", used ? "," : "", k);
        write_file(text, "sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", i);
        used = 0;
        for (int k = 0; k < cores * threads; k++)
            if (k % cores % packages == i % cores % packages)
                used += (size_t)snprintf(text + used, sizeof text - used, "%s%d", used ? "," : "", k);
        write_file(text, "sys/devices/system/cpu/cpu%d/topology/core_siblings_list", i);
    }
    snprintf(text, sizeof text, "0-%d\n", cores * threads - 1);
    write_file(text, "sys/devices/system/cpu/online");
}

static cpu_set_t set_of(const char *list)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    for (const char *at = list; *at; at += strcspn(at, ","), at += *at == ',') {
        int first = atoi(at), last = first;
        sscanf(at, "%d-%d", &first, &last);
        for (int i = first; i <= last; i++) CPU_SET(i, &set);
    }
    return set;
}

/* ---- tests -------------------------------------------------------------------------------------- */

static void ranks_get_whole_cores_first_and_then_share_them(void **state)
{
    (void)state;
    static const struct {
        int packages, cores, threads;
        const char *allowed;
        bind_group group;
        const char *expected; /* Processors of all members. */
    } cases[] = {
        {1, 2, 1, "0-1", {2, 1}, "0 1"},
        {1, 2, 1, "0-1", {4, 1}, "0 1 0 1"}, /* more ranks than processors */
        {1, 2, 1, "0-1", {1, 2}, "0-1"},
        {1, 2, 1, "0-1", {2, 2}, "0-1 0-1"},
        {1, 2, 1, "1", {3, 4}, "1 1 1"},
        {1, 4, 2, "0-7", {2, 1}, "0,4 1,5"}, /* whole cores with all of their hardware threads */
        {1, 4, 2, "0-7", {4, 1}, "0,4 1,5 2,6 3,7"},
        {1, 4, 2, "0-7", {2, 2}, "0-1,4-5 2-3,6-7"},
        {1, 4, 2, "0-7", {4, 2}, "0,4 1,5 2,6 3,7"}, /* each core has two processors */
        {1, 4, 2, "0-7", {6, 1}, "0,4 1,5 2,6 3,7 0,4 1,5"},
        {1, 4, 2, "2-4", {3, 1}, "2 3 4"},   /* only the allowed parts of cores */
        {2, 4, 1, "0-3", {4, 1}, "0 2 1 3"}, /* socket by socket */
        {2, 4, 2, "0-7", {2, 2}, "0,2,4,6 1,3,5,7"},
        {1, 3, 1, "0-2", {2, 2}, "0-1 0,2"},
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        processors p;
        char found[128] = "", list[64];
        cpu_set_t allowed = set_of(cases[c].allowed), set;
        make_machine(cases[c].packages, cases[c].cores, cases[c].threads);
        assert_ok(processors_open(root, &allowed, &p));
        for (int m = 0; m < cases[c].group.members; m++) {
            bind_choose(&p, cases[c].group, m, &set);
            snprintf(found + strlen(found), sizeof found - strlen(found), "%s%s", m ? " " : "",
                     processors_format(&set, list, sizeof list));
        }
        if (strcmp(found, cases[c].expected) != 0)
            fail_msg("case %zu: found %s, expected %s", c, found, cases[c].expected);
        processors_close(&p);
        remove_machine();
    }
}

static void without_a_topology_every_processor_is_a_core(void **state)
{
    (void)state;
    processors p;
    cpu_set_t allowed = set_of("1,3");
    assert_ok(processors_open("/nowhere", &allowed, &p));
    assert_int_equal(p.core_count, 2);
    assert_true(CPU_ISSET(3, &p.cores[1]));
    assert_false(p.restricted); /* No restriction is known. */
    processors_close(&p);
}

static void no_more_cores_take_part_than_a_container_keeps_at_work(void **state)
{
    (void)state;
    static const struct {
        const char *group, *file, *text, *second, *second_text;
        double limit;
        const char *third; /* Processors of rank 2. */
        int busy;          /* Number of busy cores; the number of ranks by default. */
    } cases[] = {
        {"0::/\n", "cpu.max", "150000 100000\n", NULL, NULL, 1.5, "0", 2},
        {"0::/\n", "cpu.max", "max 100000\n", NULL, NULL, 0, "2", 4},
        {"0::/a/b\n", "a/cpu.max", "300000 100000\n", "a/b/cpu.max", "max 100000\n", 3, "2", 3},
        {"0::/a/b\n", "a/cpu.max", "300000 100000\n", "cpu.max", "100000 100000\n", 1, "0", 1},
        {"4:cpuset:/\n2:cpu:/x\n", "cpu/cpu.cfs_quota_us", "200000\n", "cpu/cpu.cfs_period_us", "100000\n", 2,
         "0", 2},
        {"2:cpu:/\n", "cpu/cpu.cfs_quota_us", "-1\n", "cpu/cpu.cfs_period_us", "100000\n", 0, "2", 4},
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        processors p;
        char list[64];
        cpu_set_t allowed = set_of("0-3"), set;
        make_machine(1, 4, 1);
        write_file(cases[c].group, "proc/self/cgroup");
        write_file(cases[c].text, "sys/fs/cgroup/%s", cases[c].file);
        if (cases[c].second) write_file(cases[c].second_text, "sys/fs/cgroup/%s", cases[c].second);
        assert_ok(processors_open(root, &allowed, &p));
        bind_choose(&p, (bind_group){4, 1}, 2, &set);
        processors_format(&set, list, sizeof list);
        if (p.limit != cases[c].limit || strcmp(list, cases[c].third) != 0)
            fail_msg("case %zu: found %g, %s, expected %g, %s", c, p.limit, list, cases[c].limit,
                     cases[c].third);
        assert_int_equal(processors_cores(&p), cases[c].busy);
        processors_close(&p);
        remove_machine();
    }
}

static void the_memory_of_a_container_is_the_least_of_its_groups(void **state)
{
    (void)state;
    static const struct {
        const char *group, *file, *text, *second, *second_text;
        double limit;
    } cases[] = {
        {"0::/a/b\n", "a/memory.max", "1073741824\n", "a/b/memory.max", "max\n", 1073741824},
        {"0::/a/b\n", "a/memory.max", "1073741824\n", "a/b/memory.max", "4096\n", 4096},
        {"0::/\n", "memory.max", "max\n", NULL, NULL, 0},
        {"5:memory:/x\n1:cpu:/\n", "memory/x/memory.limit_in_bytes", "8192\n", NULL, NULL, 8192},
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        make_machine(1, 1, 1);
        write_file(cases[c].group, "proc/self/cgroup");
        write_file(cases[c].text, "sys/fs/cgroup/%s", cases[c].file);
        if (cases[c].second) write_file(cases[c].second_text, "sys/fs/cgroup/%s", cases[c].second);
        double limit = cgroup_memory(root);
        if (limit != cases[c].limit) fail_msg("case %zu: found %g, expected %g", c, limit, cases[c].limit);
        remove_machine();
    }
}

static void kills_for_memory_are_counted_in_the_group_itself(void **state)
{
    (void)state;
    static const char events[] = "low 0\nhigh 3\nmax 9\noom 5\noom_kill 4\noom_group_kill 1\n",
                      control[] = "oom_kill_disable 0\nunder_oom 0\noom_kill 7\n";
    static const struct {
        const char *group, *file, *text;
        int64_t kills;
    } cases[] = {
        {"0::/a/b\n", "sys/fs/cgroup/a/b/memory.events.local", events, 4},
        /* Group b has no memory controller. */
        {"0::/a/b\n", "sys/fs/cgroup/a/memory.events.local", events, 4},
        {"0::/a\n", "sys/fs/cgroup/a/b/memory.events.local", events, 9}, /* file of another group */
        /* This file also counts the groups below. */
        {"0::/a\n", "sys/fs/cgroup/a/memory.events", events, 9},
        {"5:memory:/x\n0::/\n", "sys/fs/cgroup/memory/x/memory.oom_control", control, 7},
        {"5:memory:/of/the/host\n", "sys/fs/cgroup/memory/memory.oom_control", control, 7},
        {"0::/\n", "sys/kernel/nothing", events, 9}, /* the root group of the machine */
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        make_machine(1, 1, 1);
        write_file(cases[c].group, "proc/self/cgroup");
        write_file("nr_free_pages 5000\noom_kill 9\n", "proc/vmstat");
        write_file(cases[c].text, "%s", cases[c].file);
        int64_t kills = cgroup_oom_kills(root);
        if (kills != cases[c].kills)
            fail_msg("case %zu: found %d, expected %d", c, (int)kills, (int)cases[c].kills);
        remove_machine();
    }
    assert_int_equal(cgroup_oom_kills("/nowhere"), -1);
}

#define VERSION_1 "cgroup /sys/fs/cgroup/cpuset cgroup rw,cpuset 0 0\n"
#define VERSION_2 "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n"

static void who_may_use_less_than_its_container_has_been_bound(void **state)
{
    (void)state;
    static const struct {
        const char *group, *mounts, *cpuset, *allowed;
        bool restricted;
    } cases[] = {{"0::/\n", VERSION_2, NULL, "0-3", false},
                 {"0::/\n", VERSION_2, NULL, "2", true},
                 {"0::/job\n", VERSION_2, "job/cpuset.cpus.effective", "2-3", false},
                 {"0::/job\n", VERSION_2, "job/cpuset.cpus.effective", "2", true},
                 {"4:cpuset:/job\n", VERSION_1, "cpuset/job/cpuset.cpus", "2-3", false},
                 {"4:cpuset:/job\n", VERSION_1, "cpuset/job/cpuset.cpus", "3", true}};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        processors p;
        cpu_set_t allowed = set_of(cases[c].allowed);
        make_machine(1, 4, 1);
        write_file(cases[c].group, "proc/self/cgroup");
        write_file(cases[c].mounts, "proc/mounts");
        write_file("cpuset cpu\n", "sys/fs/cgroup/cgroup.controllers");
        if (cases[c].cpuset) write_file("2-3\n", "sys/fs/cgroup/%s", cases[c].cpuset);
        assert_ok(processors_open(root, &allowed, &p));
        if (p.restricted != cases[c].restricted) fail_msg("case %zu: found %d", c, p.restricted);
        processors_close(&p);
        remove_machine();
    }
}

static void lists_are_written_as_the_kernel_does(void **state)
{
    (void)state;
    static const char *const lists[] = {"0", "0-1", "0,2-3", "1-2,5,9-10", ""};
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        char text[64];
        cpu_set_t set = set_of(lists[i]);
        assert_string_equal(processors_format(&set, text, sizeof text), lists[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_get_whole_cores_first_and_then_share_them),
        cmocka_unit_test(without_a_topology_every_processor_is_a_core),
        cmocka_unit_test(no_more_cores_take_part_than_a_container_keeps_at_work),
        cmocka_unit_test(the_memory_of_a_container_is_the_least_of_its_groups),
        cmocka_unit_test(kills_for_memory_are_counted_in_the_group_itself),
        cmocka_unit_test(who_may_use_less_than_its_container_has_been_bound),
        cmocka_unit_test(lists_are_written_as_the_kernel_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
