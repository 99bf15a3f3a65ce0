#include "harness/labs/labs.h"

#include <stdlib.h>
#include <string.h>

const lab lab_table[] = {
    {1, "count-bytes", "count bytes", "1 to 2", "count.c", count_bytes_parts, count_bytes_ask, NULL, NULL},
    {2, "reducer", "parameter server", "1 to 2", "reducer.c", reducer_parts, reducer_ask, NULL, NULL},
    {3, "ring", "ring all-reduce", "2 to 3", "ring.c", ring_parts, ring_ask, "time / reference's time",
     ring_hidden},
    {4, "alpha-beta", "latency and bandwidth", "1 to 2", "model.c", alpha_beta_parts, alpha_beta_ask, NULL,
     NULL},
    {5, "buckets", "gradient buckets", "2 to 3", "buckets.c", buckets_parts, buckets_ask, NULL, NULL},
    {6, "stragglers", "stragglers", "2 to 3", "stale.c", stragglers_parts, stragglers_ask, NULL, NULL},
    {7, "memory", "memory and sharded state", "2 to 3", "memory.c", memory_parts, memory_ask, NULL, NULL},
    {8, "choose", "choose a configuration", "2 to 3", NULL, choose_parts, choose_ask, "regret (%)", NULL},
};
const int lab_count = sizeof lab_table / sizeof lab_table[0];

status lab_find(const char *number_or_name, const lab **out)
{
    char numbers[64] = "", *end = numbers;
    for (int i = 0; i < lab_count; i++) {
        const lab *l = *out = &lab_table[i];
        end += sprintf(end, "%s%d", i ? ", " : "", l->number);
        if (strcmp(number_or_name, l->name) == 0 ||
            (strlen(number_or_name) == 1 && atoi(number_or_name) == l->number))
            return STATUS_OK;
    }
    return fail(STATUS_USAGE, "lab: expected the number of a lab, one of %s, got '%s'; see harness lab list",
                numbers, number_or_name);
}
