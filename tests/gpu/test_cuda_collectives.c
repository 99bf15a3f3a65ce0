/* Tests NCCL's collectives in stream order: kinds, groups, more calls than fit in the queue, and a rank that
 * leaves. The ranks are threads that share a GPU, which NCCL itself refuses. So these tests run only on the
 * emulator. */
#include "common/base/clock.h"
#include "common/collectives/collective.h"
#include "common/collectives/nccl/collective_nccl.h"
#include "common/device/cuda/cuda_module.h"
#include "tests/common/device/op_devices.h"
#include "tests/common/device/op_runner.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { RANKS = 4, COUNT = 10 };

static char bootstrap[COLLECTIVE_BOOTSTRAP_BYTES];

typedef struct rank {
    int rank;
    pthread_t thread;
    device *device;
    device_stream *stream;
    device_memory memory;
    collective_world *world;
    collective_group *all;
    float values[4 * COUNT];
    status (*run)(struct rank *r);
    status code;
    error_record error;
} rank;

static bool is_emulated(void)
{
    const cuda_module *module;
    static cuda_probe probe;
    if (cuda_module_open(&module) != STATUS_OK) return false;
    module->probe(&probe);
    return probe.emulated;
}

static status open_rank(rank *r)
{
    int ranks[RANKS] = {0, 1, 2, 3};
    device_config device = {.name = "cuda", .rank = r->rank, .world = RANKS, .threads = 1, .share_gpu = true};
    TRY(device_open(&device, &r->device));
    TRY(device_stream_open(r->device, DEVICE_STREAM_COMMUNICATION, &r->stream));
    TRY(device_allocate(r->device, DEVICE_MEMORY_PRIVATE, sizeof r->values, &r->memory));
    collective_config config = {.rank = r->rank,
                                .world = RANKS,
                                .name = "test",
                                .device = r->device,
                                .bootstrap = bootstrap,
                                .stall_timeout_ns = 60 * NS_PER_S,
                                .connect_timeout_ns = 60 * NS_PER_S};
    TRY(collective_open("nccl", &config, &r->world));
    return collective_group_open(r->world, "all", ranks, RANKS, &r->all);
}

static void *run_rank(void *context)
{
    rank *r = context;
    r->memory.fd = -1;
    r->code = open_rank(r);
    if (r->code == STATUS_OK) r->code = r->run(r);
    error_copy(&r->error);
    collective_group_close(&r->all);
    collective_close(&r->world);
    if (r->device) device_free(r->device, &r->memory);
    device_stream_close(&r->stream);
    device_close(&r->device);
    return NULL;
}

static void run_ranks(rank ranks[RANKS], status (*run)(rank *r))
{
    if (!is_emulated()) skip();
    must(collective_nccl_bootstrap(bootstrap));
    memset(ranks, 0, RANKS * sizeof *ranks);
    for (int r = 0; r < RANKS; r++) {
        ranks[r].rank = r;
        ranks[r].run = run;
        assert_int_equal(pthread_create(&ranks[r].thread, NULL, run_rank, &ranks[r]), 0);
    }
    for (int r = 0; r < RANKS; r++) pthread_join(ranks[r].thread, NULL);
}

static void expect_well(const rank ranks[RANKS])
{
    for (int r = 0; r < RANKS; r++)
        if (ranks[r].code != STATUS_OK) fail_msg("rank %d: %s", r, ranks[r].error.message);
}

/* Loads the initial values: element i of rank r is 100 (r + 1) + i. */
static status load(rank *r)
{
    for (int i = 0; i < 4 * COUNT; i++) r->values[i] = (float)(100 * (r->rank + 1) + i);
    return device_upload(r->stream, r->memory.data, r->values, DTYPE_F32, DTYPE_F32, 4 * COUNT);
}

static status store(rank *r)
{
    TRY(device_download(r->stream, r->values, r->memory.data, DTYPE_F32, DTYPE_F32, 4 * COUNT));
    return device_stream_synchronize(r->stream);
}

static status enqueue(rank *r, collective_group *group, collective_kind kind, reduce_op op, int root,
                      int64_t in, int64_t out)
{
    float *base = r->memory.data;
    collective_ticket ticket;
    collective_call call = {.kind = kind,
                            .op = op,
                            .type = DTYPE_F32,
                            .root = root,
                            .count = COUNT,
                            .in = {.base = base + in},
                            .out = {.base = base + out}};
    return collective_enqueue(group, &call, r->stream, &ticket);
}

/* The host does not wait between the calls: each call reads the result of the call before it. */
static status run_kinds(rank *r)
{
    int64_t mine = collective_part_begin(COUNT, RANKS, r->rank);
    TRY(load(r));
    TRY(enqueue(r, r->all, COLLECTIVE_ALL_REDUCE, REDUCE_MEAN, 0, 0, 0));
    TRY(enqueue(r, r->all, COLLECTIVE_REDUCE, REDUCE_MAX, 2, COUNT, COUNT));
    TRY(enqueue(r, r->all, COLLECTIVE_BROADCAST, REDUCE_SUM, 2, COUNT, COUNT));
    TRY(enqueue(r, r->all, COLLECTIVE_REDUCE_SCATTER, REDUCE_SUM, 0, 2 * COUNT, 2 * COUNT + mine));
    TRY(enqueue(r, r->all, COLLECTIVE_BARRIER, REDUCE_SUM, 0, 0, 0));
    TRY(enqueue(r, r->all, COLLECTIVE_ALL_GATHER, REDUCE_SUM, 0, 2 * COUNT + mine, 3 * COUNT));
    return store(r);
}

static void calls_run_one_after_another_in_the_order_of_the_stream(void **context)
{
    static rank ranks[RANKS];
    (void)context;
    run_ranks(ranks, run_kinds);
    expect_well(ranks);
    for (int r = 0; r < RANKS; r++)
        for (int i = 0; i < COUNT; i++) {
            assert_float_equal(ranks[r].values[i], 250 + i, 0);
            assert_float_equal(ranks[r].values[COUNT + i], 400 + COUNT + i, 0);
            assert_float_equal(ranks[r].values[3 * COUNT + i], 1000 + 4 * (2 * COUNT + i), 0);
        }
}

/* Splits the world into groups of two neighbors, and runs calls in these groups. */
static status run_groups(rank *r)
{
    collective_group *pair;
    int first = r->rank / 2 * 2, ranks[] = {first, first + 1};
    TRY(load(r));
    TRY(collective_group_open(r->world, first ? "high" : "low", ranks, 2, &pair));
    status rc = enqueue(r, pair, COLLECTIVE_ALL_REDUCE, REDUCE_SUM, 0, 0, 0);
    if (rc == STATUS_OK) rc = enqueue(r, r->all, COLLECTIVE_ALL_REDUCE, REDUCE_SUM, 0, COUNT, COUNT);
    if (rc == STATUS_OK) rc = store(r);
    collective_group_close(&pair);
    return rc;
}

static void groups_are_split_from_the_world(void **context)
{
    static rank ranks[RANKS];
    (void)context;
    run_ranks(ranks, run_groups);
    expect_well(ranks);
    for (int r = 0; r < RANKS; r++)
        for (int i = 0; i < COUNT; i++) {
            assert_float_equal(ranks[r].values[i], (r < 2 ? 300 : 700) + 2 * i, 0);
            assert_float_equal(ranks[r].values[COUNT + i], 1000 + 4 * (COUNT + i), 0);
        }
}

static status sum_float64(rank *r, collective_group *group)
{
    collective_ticket ticket;
    collective_buffer values = {.base = r->memory.data};
    return collective_enqueue(group,
                              &(collective_call){.kind = COLLECTIVE_ALL_REDUCE,
                                                 .op = REDUCE_SUM,
                                                 .type = DTYPE_F64,
                                                 .count = COUNT,
                                                 .in = values,
                                                 .out = values},
                              r->stream, &ticket);
}

/* Sums layers in float64, in place: first over {0, 3} and {1, 2}, then over {0} and {1, 2, 3}, then over all
 * ranks. Rank r has 10^r, so that any other order or group would have another result. */
static status run_group_sums(rank *r)
{
    static const int pairs[2][2] = {{0, 3}, {1, 2}}, alone[] = {0}, rest[] = {1, 2, 3};
    static const double powers[RANKS] = {1, 10, 100, 1000};
    collective_group *pair, *part;
    double values[COUNT];
    bool inner = r->rank == 1 || r->rank == 2;
    TRY(collective_group_open(r->world, inner ? "inner" : "outer", pairs[inner], 2, &pair));
    TRY(collective_group_open(r->world, r->rank ? "rest" : "alone", r->rank ? rest : alone, r->rank ? 3 : 1,
                              &part));
    for (int i = 0; i < COUNT; i++) values[i] = powers[r->rank] * (i + 1);
    TRY(device_upload(r->stream, r->memory.data, values, DTYPE_F64, DTYPE_F64, COUNT));
    TRY(sum_float64(r, pair));
    TRY(sum_float64(r, part));
    TRY(sum_float64(r, r->all));
    TRY(device_download(r->stream, values, r->memory.data, DTYPE_F64, DTYPE_F64, COUNT));
    TRY(device_stream_synchronize(r->stream));
    for (int i = 0; i < COUNT; i++) r->values[i] = (float)values[i];
    collective_group_close(&part);
    collective_group_close(&pair);
    return STATUS_OK;
}

static void group_sums_of_all_ranks_and_of_subgroups_follow_each_other(void **context)
{
    static rank ranks[RANKS];
    (void)context;
    run_ranks(ranks, run_group_sums);
    expect_well(ranks);
    for (int r = 0; r < RANKS; r++)
        for (int i = 0; i < COUNT; i++)
            assert_float_equal(ranks[r].values[i], (1001 + 3 * (110 + 110 + 1001)) * (i + 1), 0);
}

/* Rank 0 sends a different part to each other rank. Each of them sends its part on to the next rank, and the
 * last one sends its part to rank 0. Then rank 0 broadcasts a part. */
static status run_pairs(rank *r)
{
    int64_t base = r->rank ? 0 : COUNT;
    TRY(load(r));
    for (int to = 1; r->rank == 0 && to < RANKS; to++)
        TRY(enqueue(r, r->all, COLLECTIVE_SEND, REDUCE_SUM, to, to, to));
    if (r->rank > 0) TRY(enqueue(r, r->all, COLLECTIVE_RECEIVE, REDUCE_SUM, 0, 0, 0));
    if (r->rank > 1) TRY(enqueue(r, r->all, COLLECTIVE_RECEIVE, REDUCE_SUM, r->rank - 1, COUNT, COUNT));
    if (r->rank == 0)
        TRY(enqueue(r, r->all, COLLECTIVE_RECEIVE, REDUCE_SUM, RANKS - 1, COUNT, COUNT));
    else
        TRY(enqueue(r, r->all, COLLECTIVE_SEND, REDUCE_SUM, (r->rank + 1) % RANKS, base, base));
    TRY(enqueue(r, r->all, COLLECTIVE_BROADCAST, REDUCE_SUM, 0, 2 * COUNT, 2 * COUNT));
    return store(r);
}

static void sends_and_receives_of_pairs_stand_between_collectives(void **context)
{
    static rank ranks[RANKS];
    (void)context;
    run_ranks(ranks, run_pairs);
    expect_well(ranks);
    for (int r = 0; r < RANKS; r++)
        for (int i = 0; i < COUNT; i++) {
            int before = r > 1 ? r - 1 : RANKS - 1; /* the rank that has sent its part to this one */
            if (r > 0) assert_float_equal(ranks[r].values[i], 100 + r + i, 0);
            if (r != 1) assert_float_equal(ranks[r].values[COUNT + i], 100 + before + i, 0);
            assert_float_equal(ranks[r].values[2 * COUNT + i], 100 + 2 * COUNT + i, 0);
        }
}

static status run_many(rank *r)
{
    int64_t deadline;
    bool worked;
    collective_ticket last = {0};
    collective_call call = {.kind = COLLECTIVE_ALL_REDUCE,
                            .op = REDUCE_MEAN,
                            .type = DTYPE_F32,
                            .count = COUNT,
                            .in = {.base = r->memory.data},
                            .out = {.base = r->memory.data}};
    TRY(load(r));
    for (int i = 0; i < 2 * COLLECTIVE_ENQUEUED + 3; i++)
        TRY(collective_enqueue(r->all, &call, r->stream, &last));
    TRY(store(r));
    TRY(collective_progress(r->world, clock_now_ns(), &deadline, &worked));
    collective_times t = collective_get_times(r->all, last);
    return collective_done(r->all, last) && t.started_ns > 0 && t.started_ns <= t.finished_ns
               ? STATUS_OK
               : (fail)(STATUS_INTERNAL, "the last call has no times");
}

static void the_host_waits_where_too_much_is_in_flight(void **context)
{
    static rank ranks[RANKS];
    (void)context;
    run_ranks(ranks, run_many);
    expect_well(ranks);
    for (int r = 0; r < RANKS; r++) assert_float_equal(ranks[r].values[3], 253, 0);
}

/* Rank 3 leaves when it has made only some of its calls. The wait of the other ranks must end with an error,
 * and not with partial sums. */
static status run_until_one_leaves(rank *r)
{
    TRY(load(r));
    TRY(enqueue(r, r->all, COLLECTIVE_ALL_REDUCE, REDUCE_SUM, 0, 0, 0));
    if (r->rank == 3) return (fail)(STATUS_INTERNAL, "rank 3 leaves");
    TRY(enqueue(r, r->all, COLLECTIVE_ALL_REDUCE, REDUCE_SUM, 0, 0, 0));
    return store(r);
}

static status run_and_give_up(rank *r)
{
    status rc = run_until_one_leaves(r);
    error_record why;
    error_copy(&why);
    if (r->rank == 3) collective_abort(r->world, &why);
    return rc;
}

static void what_an_abort_leaves_is_not_taken_for_a_result(void **context)
{
    static rank ranks[RANKS];
    (void)context;
    run_ranks(ranks, run_and_give_up);
    for (int r = 0; r < 3; r++) {
        assert_int_equal(ranks[r].code, STATUS_PEER);
        assert_non_null(strstr(ranks[r].error.message, "NCCL, communication"));
    }
    assert_int_equal(ranks[3].code, STATUS_INTERNAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_run_one_after_another_in_the_order_of_the_stream),
        cmocka_unit_test(groups_are_split_from_the_world),
        cmocka_unit_test(group_sums_of_all_ranks_and_of_subgroups_follow_each_other),
        cmocka_unit_test(sends_and_receives_of_pairs_stand_between_collectives),
        cmocka_unit_test(the_host_waits_where_too_much_is_in_flight),
        cmocka_unit_test(what_an_abort_leaves_is_not_taken_for_a_result),
    };
    return cmocka_run_group_tests_name("NCCL's collectives", tests, NULL, NULL);
}
