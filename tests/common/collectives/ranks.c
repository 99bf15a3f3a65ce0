#include "tests/common/collectives/ranks.h"

#include "common/base/clock.h"
#include "common/base/random.h"
#include "common/collectives/collective_impl.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

status rank_error(status code, const char *format, ...)
{
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return fail(code, "%s", text);
}

#include <cmocka.h>

typedef struct rank_thread {
    pthread_t thread;
    rank_function function;
    rank_context *context;
} rank_thread;

static void *rank_main(void *argument)
{
    rank_thread *t = argument;
    t->function(t->context);
    error_copy(&t->context->error);
    return NULL;
}

void ranks_run(int world, rank_function function, const void *shared, rank_context *results)
{
    static atomic_uint runs;
    uint64_t token = random_mix(((uint64_t)getpid() << 32 | atomic_fetch_add(&runs, 1)) + RANDOM_GOLDEN);
    rank_thread threads[RANKS_MAX];
    for (int r = 0; r < world; r++) {
        results[r] = (rank_context){.rank = r, .world = world, .token = token, .shared = shared};
        threads[r] = (rank_thread){.function = function, .context = &results[r]};
        assert_int_equal(pthread_create(&threads[r].thread, NULL, rank_main, &threads[r]), 0);
    }
    for (int r = 0; r < world; r++) pthread_join(threads[r].thread, NULL);
}

void ranks_run_well(int world, rank_function function, const void *shared)
{
    rank_context results[RANKS_MAX];
    ranks_run(world, function, shared, results);
    for (int r = 0; r < world; r++)
        if (results[r].error.code != STATUS_OK)
            fail_msg("rank %d of %d: %s", r, world, results[r].error.message);
}

collective_config ranks_config(const rank_context *context)
{
    return (collective_config){
        .rank = context->rank,
        .world = context->world,
        .job_token = context->token,
        .name = "test",
        .stall_timeout_ns = 20 * NS_PER_S,
        .connect_timeout_ns = 20 * NS_PER_S,
    };
}

status ranks_open_world(const char *algorithm, const collective_config *config, collective_world **out)
{
    collective_config own = *config;
    for (own.algorithm = 0; own.algorithm < COLLECTIVE_ALGORITHM_COUNT; own.algorithm++)
        if (strcmp(collective_algorithm_names[own.algorithm], algorithm) == 0) break;
    return collective_open("shm", &own, out);
}

status ranks_open(const rank_context *context, const char *algorithm, const collective_window *windows,
                  int window_count, collective_world **out)
{
    collective_config config = ranks_config(context);
    config.windows = windows;
    config.window_count = window_count;
    return ranks_open_world(algorithm, &config, out);
}

status ranks_group(const rank_context *context, collective_world *world, collective_group **out)
{
    int all[RANKS_MAX];
    for (int r = 0; r < context->world; r++) all[r] = r;
    return collective_group_open(world, "all", all, context->world, out);
}

status ranks_wait(collective_group *group, collective_ticket ticket)
{
    collective_world *world = group->world;
    while (!collective_done(group, ticket)) {
        int64_t deadline;
        bool worked;
        TRY(collective_progress(world, clock_now_ns(), &deadline, &worked));
        if (!worked && !collective_done(group, ticket)) collective_wait(world, deadline);
    }
    return STATUS_OK;
}

status ranks_in_world(rank_context *context, const char *algorithm, const collective_config *config,
                      ranks_body run)
{
    collective_world *world = NULL;
    collective_group *group = NULL;
    status rc;
    TRY_GOTO(rc, ranks_open_world(algorithm, config, &world), out);
    TRY_GOTO(rc, ranks_group(context, world, &group), out);
    rc = run(context, world, group);
out:
    collective_group_close(&group);
    collective_close(&world);
    return rc;
}
