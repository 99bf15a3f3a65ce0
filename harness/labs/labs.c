#include "harness/labs/labs.h"

#include <stdlib.h>
#include <string.h>

const lab *const lab_table[] = {&count_bytes_lab, &reducer_lab,    &ring_lab,   &alpha_beta_lab,
                                &buckets_lab,     &stragglers_lab, &memory_lab, &choose_lab};
const int lab_count = sizeof lab_table / sizeof lab_table[0];

status lab_find(const char *number_or_name, const lab **out)
{
    char numbers[64] = "", *end = numbers;
    for (int i = 0; i < lab_count; i++) {
        end += sprintf(end, "%s%d", i ? ", " : "", lab_table[i]->number);
        *out = lab_table[i];
        if (strcmp(number_or_name, (*out)->name) == 0 ||
            (strlen(number_or_name) == 1 && atoi(number_or_name) == (*out)->number))
            return STATUS_OK;
    }
    return fail(STATUS_USAGE, "lab: expected the number of a lab, one of %s, got '%s'; see harness lab list",
                numbers, number_or_name);
}

double lab_points(const lab *l)
{
    double points = l->source ? LAB_COMPILE_POINTS : 0;
    for (int p = 0; p < l->part_count; p++) points += l->parts[p].points;
    return points;
}
