/* Tests the algorithm of docs/add-a-collective.md, which is found by its name. Runs an all-reduce in one
 * round, and one in many rounds through the staging areas. */
#include "tests/common/collectives/ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { WORLD = 3, MOST = 1000003 };

static float values[WORLD][MOST];

static status all_reduce(rank_context *context)
{
    int64_t count = *(const int64_t *)context->shared;
    float *own = values[context->rank];
    collective_config config = ranks_config(context);
    collective_world *world = NULL;
    collective_group *group = NULL;
    collective_buffer buffer = {.base = own};
    collective_call call = {
        .kind = COLLECTIVE_ALL_REDUCE, .type = DTYPE_F32, .count = count, .in = buffer, .out = buffer};
    status rc;
    for (int64_t i = 0; i < count; i++) own[i] = (float)(context->rank + i % 1000);
    TRY_GOTO(rc, ranks_open_world("hub", &config, &world), out);
    TRY_GOTO(rc, ranks_group(context, world, &group), out);
    TRY_GOTO(rc, collective_run(group, &call), out);
    for (int64_t i = 0; i < count; i++)
        if (own[i] != (float)(3 * (i % 1000) + 3))
            TRY_GOTO(rc,
                     rank_error(STATUS_INTERNAL, "%lld elements: element %lld is %g, expected %lld",
                                (long long)count, (long long)i, (double)own[i],
                                (long long)(3 * (i % 1000) + 3)),
                     out);
out:
    collective_group_close(&group);
    collective_close(&world);
    return rc;
}

static void rank_0_adds_the_buffers_of_all_ranks(void **state)
{
    (void)state;
    static const int64_t counts[] = {0, 1, 5, 4096, MOST};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        ranks_run_well(WORLD, all_reduce, &counts[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(rank_0_adds_the_buffers_of_all_ranks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
