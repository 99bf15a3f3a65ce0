/* Tests engines that shard state among ranks: they compute the same numbers as ddp, need a part of its
 * memory, and send as many bytes as each ZeRO stage promises. */
#include "ps/ps.h"
#include "ring/ring.h"
#include "tests/engines/training.h"
#include "tests/support/check.h"
#include "tests/support/sanitized.h"

#include <math.h>
#include <stdlib.h>

enum { STEPS = SANITIZED ? 2 : 5, MOST = 5 };

static bool is_long; /* Set by --long: runs every case. */

typedef struct result {
    uint64_t hash[MOST];
    float *values; /* rank 0's parameters in PyTorch's order */
    int64_t elements;
    ledger memory[MOST];
    sync_counters before[MOST], after[MOST]; /* Counters before and after the last step. */
    /* For all ranks together, the elements of all shards with padding. For each rank, the elements of its
     * shard without padding. */
    int64_t padded, own[MOST];
    /* Elements of all parameters, if each is padded to as many equal chunks of rows as there are ranks. */
    int64_t by_rows;
} result;

static status keep_values(training_rank *r, result *out)
{
    const param_set *set = trainer_params(r->trainer);
    out->elements = set->model->parameter_elements;
    out->values = malloc((size_t)out->elements * sizeof *out->values);
    float *at = out->values;
    for (int i = 0; i < set->model->param_count; at += set->model->params[i++].elements)
        TRY(param_set_export(set, trainer_stream(r->trainer), set->params.data, i, DTYPE_F32, at));
    return STATUS_OK;
}

static status train(training_rank *r)
{
    result *out = training_context(r);
    sync_engine *e = trainer_engine(r->trainer);
    const param_set *set = trainer_params(r->trainer);
    for (int step = 0; step < STEPS; step++) {
        TRY(sync_flush(e));
        TRY(training_barrier(r));
        sync_read_counters(e, &out->before[r->rank]);
        if (step == STEPS - 1) ledger_reset_peaks(trainer_ledger(r->trainer));
        TRY(training_step(r));
    }
    TRY(sync_flush(e));
    TRY(training_barrier(
        /* When this rank has received its parameters, its server may still have to reply to other ranks. */
        r));
    sync_read_counters(e, &out->after[r->rank]);
    out->memory[r->rank] = *trainer_ledger(r->trainer);
    if (set->shards) out->own[r->rank] = set->shards->own_elements;
    for (int u = 0; set->shards && r->rank == 0 && u < set->shards->unit_count; u++)
        out->padded += set->shards->config.ranks * set->shards->units[u].shard;
    for (int i = 0; set->shards && r->rank == 0 && i < set->model->param_count; i++) {
        const nn_param *p = &set->model->params[i];
        int64_t n = set->shards->config.ranks, rows = p->shape.dims[0];
        out->by_rows += (rows + n - 1) / n * n * (p->elements / rows);
    }
    TRY(sync_gather_parameters(e));
    if (r->rank == 0) TRY(keep_values(r, out));
    return param_set_hash(set, trainer_stream(r->trainer), &out->hash[r->rank]);
}

typedef struct shard_case {
    const char *model;
    int world;
    const char *options;
    int64_t image, classes;
    bool inline_progress;
    int divide;
} shard_case;

/* Two ranks add every chunk in the same order. Three or more ranks do so only with two-shot. */
static const shard_case cases[] = {
    {"wine_mlp", 1, "", 0, 0, false, 0},
    {"wine_mlp", 2, "", 0, 0, true, 0},
    {"lenet", 2, "--algorithm ring", 0, 0, false, SHARED_DIVIDE_AFTER},
    {"lenet", 3, "--algorithm two-shot", 0, 0, false, 0},
    {"lenet", 5, "--algorithm two-shot", 0, 0, true, 0},
    {"resnet18", 2, "--algorithm two-shot", 32, 10, false, 0},
};
/* Under a sanitizer the last one is left out, since it is too large. */
enum { CASES = sizeof cases / sizeof cases[0] - SANITIZED };

static const char *const policies[] = {"zero1", "zero2", "zero3", "fsdp"};
enum { POLICIES = sizeof policies / sizeof policies[0] };

static void run_engine(const shard_case *c, const sync_engine_type *engine, const char *policy,
                       double clip_norm, result *out)
{
    optimizer_options adam = optimizer_defaults(OPTIMIZER_ADAM);
    adam.clip_norm = clip_norm;
    training_config config = {.model = c->model,
                              .image = c->image,
                              .classes = c->classes,
                              .engine = engine,
                              .policy = policy,
                              .options = c->options,
                              .world = c->world,
                              .batch = 4,
                              .inline_progress = c->inline_progress,
                              .divide = c->divide,
                              .optimizer = adam};
    *out = (result){0};
    assert_ok(training_run(&config, out, train));
}

static void run(const shard_case *c, const char *policy, double clip_norm, result *out)
{
    run_engine(c, &sync_ring, policy, clip_norm, out);
}

/* Returns the result of cases[i] under a policy, without the values. The run is made once, for all tests that
 * need its result. */
static const result *run_of(int i, int policy)
{
    static result found[CASES][POLICIES];
    result *r = &found[i][policy];
    if (r->elements == 0) {
        run(&cases[i], policies[policy], 0, r);
        free(r->values);
        r->values = NULL;
    }
    return r;
}

static void every_stage_is_bit_identical_to_ddp(void **state)
{
    (void)state;
    for (int i = 0; i < CASES; i++) {
        result ddp;
        run(&cases[i], "ddp", 0, &ddp);
        for (int p = 0; p < POLICIES; p++)
            for (int r = 0; r < cases[i].world; r++)
                if (run_of(i, p)->hash[r] != ddp.hash[0])
                    fail_msg("%s, %d ranks, %s: rank %d differs from ddp", cases[i].model, cases[i].world,
                             policies[p], r);
        free(ddp.values);
    }
}

/* The norm of sharded gradients is added up in another order, so results are equal only up to rounding. */
static void with_clipping_every_stage_equals_ddp_to_rounding(void **state)
{
    (void)state;
    result ddp, cut;
    run(&cases[3], "ddp", 0.05, &ddp);
    for (int p = 0; p < POLICIES; p++) {
        run(&cases[3], policies[p], 0.05, &cut);
        for (int64_t i = 0; i < ddp.elements; i++)
            if (fabsf(cut.values[i] - ddp.values[i]) > 1e-6F + 1e-5F * fabsf(ddp.values[i]))
                fail_msg("%s, element %lld: found %.9g, expected %.9g", policies[p], (long long)i,
                         cut.values[i], ddp.values[i]);
        free(cut.values);
    }
    free(ddp.values);
}

static int64_t peak(const result *r, int rank, ledger_class c)
{
    return r->memory[rank].classes[c].peak;
}

/* With Adam a parameter takes 4 + 4 + 8 bytes. Of the state that a ZeRO stage shards, a rank holds exactly
 * the bytes of its shards. Whole units that are gathered for use are counted in other memory classes. */
static void a_stage_holds_its_shards_to_the_byte(void **state)
{
    (void)state;
    for (int i = 0; i < CASES; i++)
        for (int p = 0; p < POLICIES; p++) {
            const result *cut = run_of(i, p);
            int64_t all = 0;
            for (int r = 0; r < cases[i].world; r++) {
                int64_t own = cut->own[r], whole = cut->elements;
                int64_t buffers = peak(cut, r, LEDGER_PARAMETERS) - 4 * (p >= 2 ? own : whole);
                assert_int_equal(
                    buffers, strcmp(cases[i].model, "resnet18") == 0 ? 38400 : 0); /* running statistics */
                assert_int_equal(peak(cut, r, LEDGER_GRADIENTS), 4 * (p >= 1 ? own : whole));
                assert_int_equal(peak(cut, r, LEDGER_OPTIMIZER), 8 * own);
                assert_true(peak(cut, r, LEDGER_BUCKETS) <= (p >= 1 ? 4 * whole : 0));
                assert_true((peak(cut, r, LEDGER_GATHERED) > 0) == (p >= 2));
                assert_int_equal(cut->memory[r].classes[LEDGER_GATHERED].current,
                                 0); /* After a step no bytes of this class are left. */
                assert_int_equal(cut->memory[r].classes[LEDGER_BUCKETS].current, 0);
                all += own;
            }
            assert_int_equal(all, cut->elements);
        }
}

/* Shards by rows have other padding than shards of a unit's vector. For P elements with padding, the
 * all-reduce of a ring moves 2 (n - 1) / n P. A reduce-scatter and an all-gather together move as much. A
 * second all-gather of all units makes it 1.5 times as much. */
static void stages_move_the_bytes_of_their_collectives(void **state)
{
    (void)state;
    const shard_case c = {"lenet", 3, "--algorithm ring", 0, 0, false, 0};
    for (int p = 0; p < POLICIES; p++) {
        result cut;
        run(&c, policies[p], 0, &cut);
        for (int r = 0; r < c.world; r++) {
            int64_t sent = cut.after[r].bytes_sent - cut.before[r].bytes_sent, passes = p >= 2 ? 3 : 2;
            assert_int_equal(sent, passes * 4 * cut.padded / c.world * (c.world - 1));
        }
        if (p == 3)
            assert_int_equal(cut.padded, cut.by_rows);
        else
            assert_true(cut.padded >= cut.elements && cut.padded < cut.elements + 10 * 2 * 16 + 5 * 3 * 16);
        free(cut.values);
    }
}

/* conv1 has 6 filters. Three of 5 ranks have two filters each, and the other ranks have none. */
static void under_fsdp_later_ranks_may_have_nothing_of_a_parameter(void **state)
{
    (void)state;
    const shard_case c = {"lenet", 5, "--algorithm two-shot", 0, 0, false, 0};
    result cut;
    run(&c, "fsdp", 0, &cut);
    assert_true(cut.own[3] < cut.own[2] && cut.own[4] < cut.own[0]);
    assert_true(cut.by_rows > cut.elements);
    free(cut.values);
}

static void parameters_that_are_kept_for_the_backward_pass_are_gathered_once(void **state)
{
    (void)state;
    const shard_case once = {"lenet", 3, "--algorithm ring --reshard no", 0, 0, false, 0},
                     twice = {"lenet", 3, "--algorithm ring", 0, 0, false, 0};
    result kept, dropped;
    run(&once, "zero3", 0, &kept);
    run(&twice, "zero3", 0, &dropped);
    for (int r = 0; r < once.world; r++) {
        assert_true(kept.hash[r] == dropped.hash[r]);
        assert_int_equal(kept.after[r].bytes_sent - kept.before[r].bytes_sent,
                         2 * 4 * kept.padded / once.world * (once.world - 1));
        assert_true(peak(&kept, r, LEDGER_GATHERED) > peak(&dropped, r, LEDGER_GATHERED));
        assert_int_equal(kept.memory[r].classes[LEDGER_GATHERED].current, 0);
    }
    free(kept.values);
    free(dropped.values);
}

/* Ranks 0 and 1 shard state between them, and so do ranks 2 and 3. Ranks 0 and 2 have the same shards, and so
 * have ranks 1 and 3. Groups of one rank give the result of ddp. A group of all ranks gives the same result
 * as no group. */
static void groups_cut_state_among_neighbors_and_replicate_it(void **state)
{
    (void)state;
    static const char *const words[] = {"--algorithm two-shot --group 1", "--algorithm two-shot --group 2",
                                        "--algorithm two-shot --group 4"};
    shard_case c = {"lenet", 4, "--algorithm two-shot", 0, 0, false, 0};
    result ddp, cut;
    run(&c, "ddp", 0, &ddp);
    for (int p = 0; p < POLICIES; p++) {
        uint64_t pairs = 0;
        for (int g = 0; g < 3; g++) {
            c.options = words[g];
            run(&c, policies[p], 0, &cut);
            if (g == 1) pairs = cut.hash[0];
            for (int r = 0; r < c.world; r++) {
                assert_int_equal(peak(&cut, r, LEDGER_OPTIMIZER), 8 * cut.own[r]);
                if (cut.hash[r] != (g == 1 ? pairs : ddp.hash[0]))
                    fail_msg("%s, %s: rank %d differs", policies[p], words[g], r);
            }
            assert_int_equal(cut.own[0] + (g == 0 ? 0 : cut.own[1]) + (g < 2 ? 0 : cut.own[2] + cut.own[3]),
                             cut.elements);
            for (int64_t i = 0; i < ddp.elements; i++) /* Two groups add in another order than ddp. */
                assert_true(fabsf(cut.values[i] - ddp.values[i]) <= 1e-4F);
            free(cut.values);
        }
    }
    free(ddp.values);
}

/* In a step, each group has a reduce-scatter and two all-gathers. Between the groups there is an all-reduce
 * of shards. */
static void groups_move_the_bytes_of_their_collectives(void **state)
{
    (void)state;
    const shard_case c = {"lenet", 4, "--algorithm ring --group 2", 0, 0, false, 0};
    result cut;
    run(&c, "zero3", 0, &cut);
    for (int r = 0; r < c.world; r++)
        assert_int_equal(cut.after[r].bytes_sent - cut.before[r].bytes_sent,
                         3 * 4 * cut.padded / 2 + 4 * cut.padded / 2);
    free(cut.values);
}

/* ---- mixed precision -------------------------------------------------------------------------- */

static const shard_case mixed_cases[4] = {
    {"wine_mlp", 1, "--mixed-precision", 0, 0, false, 0},
    {"lenet", 2, "--mixed-precision --algorithm ring", 0, 0, true, 0},
    {"lenet", 3, "--mixed-precision --algorithm two-shot", 0, 0, false, 0},
    /* runs only with --long */
    {"resnet18", 2, "--mixed-precision --algorithm two-shot", 32, 10, false, SHARED_DIVIDE_AFTER},
};

static void with_mixed_precision_every_stage_is_bit_identical_to_ddp(void **state)
{
    (void)state;
    for (int i = 0; i < (is_long ? 4 : 3); i++) {
        result ddp, cut;
        run(&mixed_cases[i], "ddp", 0, &ddp);
        for (int p = 0; p < POLICIES; p++) {
            run(&mixed_cases[i], policies[p], 0, &cut);
            for (int r = 0; r < mixed_cases[i].world; r++)
                if (cut.hash[r] != ddp.hash[0])
                    fail_msg("%s, %d ranks, %s: rank %d differs from ddp", mixed_cases[i].model,
                             mixed_cases[i].world, policies[p], r);
            free(cut.values);
        }
        free(ddp.values);
    }
}

/* With Adam a parameter takes 2 + 2 + 4 + 8 bytes, and the ranks send half of the bytes of float32. */
static void mixed_precision_halves_parameters_gradients_and_traffic(void **state)
{
    (void)state;
    const shard_case c = {"lenet", 3, "--mixed-precision --algorithm ring", 0, 0, false, 0};
    for (int p = 0; p < POLICIES; p++) {
        result cut;
        run(&c, policies[p], 0, &cut);
        for (int r = 0; r < c.world; r++) {
            int64_t own = cut.own[r], whole = cut.elements, passes = p >= 2 ? 3 : 2;
            assert_int_equal(peak(&cut, r, LEDGER_PARAMETERS), 2 * (p >= 2 ? own : whole));
            assert_int_equal(peak(&cut, r, LEDGER_GRADIENTS), 2 * (p >= 1 ? own : whole));
            assert_int_equal(peak(&cut, r, LEDGER_OPTIMIZER), (4 + 8) * own);
            assert_int_equal(cut.memory[r].classes[LEDGER_GATHERED].current, 0);
            assert_int_equal(cut.memory[r].classes[LEDGER_BUCKETS].current, 0);
            assert_int_equal(cut.after[r].bytes_sent - cut.before[r].bytes_sent,
                             passes * 2 * cut.padded / c.world * (c.world - 1));
        }
        free(cut.values);
    }
}

/* A bfloat16 parameter would lose an update of 2^-12 of its value, since its last bit is worth at least 2^-8
 * of this value. */
static void masters_add_up_updates_that_bfloat16_loses(void **state)
{
    (void)state;
    static const char *const words[] = {"", "--mixed-precision"};
    static const char *const devices[] = {"cpu", "reference"};
    for (size_t d = 0; d < sizeof devices / sizeof devices[0]; d++) {
        result found[2], start;
        optimizer_options sgd = optimizer_defaults(OPTIMIZER_SGD);
        training_config config = {.model = "wine_mlp",
                                  .device = devices[d],
                                  .engine = &sync_ring,
                                  .policy = "zero3",
                                  .world = 2,
                                  .batch = 4,
                                  .optimizer = sgd};
        config.optimizer.lr = 1e-30;
        start = (result){0};
        assert_ok(training_run(&config, &start, train));
        config.optimizer.lr = 2e-4;
        for (int i = 0; i < 2; i++) {
            config.options = words[i];
            found[i] = (result){0};
            assert_ok(training_run(&config, &found[i], train));
        }
        double wide = 0, apart = 0;
        for (int64_t i = 0; i < start.elements; i++) {
            double moved = (double)found[0].values[i] - (double)start.values[i];
            wide += moved * moved;
            apart += pow((double)found[1].values[i] - (double)found[0].values[i], 2);
        }
        if (!(wide > 0 && sqrt(apart) < 0.05 * sqrt(wide)))
            fail_msg("%s: parameters moved by %g, and with mixed precision by %g less or more", devices[d],
                     sqrt(wide), sqrt(apart));
        for (int i = 0; i < 2; i++) free(found[i].values);
        free(start.values);
    }
}

static status train_once(training_rank *r)
{
    TRY(training_step(r));
    TRY(sync_flush(trainer_engine(r->trainer)));
    TRY(sync_gather_parameters(trainer_engine(r->trainer)));
    return r->rank == 0 ? keep_values(r, training_context(r)) : STATUS_OK;
}

/* All batches are the same, so the mean of 1024 batches is the gradient of one. If the sum of so many equal
 * numbers were rounded to bfloat16 after each addition, it would end at half of the right sum. */
static void sums_of_micro_batches_are_not_rounded_to_bfloat16(void **state)
{
    (void)state;
    static const char *const all[] = {"ddp", "zero1", "zero2", "zero3", "fsdp"};
    static const struct {
        double lr;
        int64_t accumulate;
    } runs[] = {{1e-30, 1}, {0.1, 1}, {0.1, 1024}};
    for (size_t p = 0; p < sizeof all / sizeof all[0]; p++) {
        result found[3];
        for (int i = 0; i < 3; i++) {
            training_config config = {.model = "wine_mlp",
                                      .engine = &sync_ring,
                                      .policy = all[p],
                                      .options = "--mixed-precision",
                                      .world = 2,
                                      .batch = 4,
                                      .accumulate = runs[i].accumulate,
                                      .repeats = true,
                                      .optimizer = optimizer_defaults(OPTIMIZER_SGD)};
            config.optimizer.lr = runs[i].lr;
            found[i] = (result){0};
            assert_ok(training_run(&config, &found[i], train_once));
        }
        double most = 0;
        for (int64_t i = 0; i < found[0].elements; i++) {
            float one = found[1].values[i] - found[0].values[i],
                  many = found[2].values[i] - found[0].values[i];
            most = fmax(most, fabsf(one));
            if (fabsf(many - one) > 0x1p-6F * fabsf(one) + 1e-6F)
                fail_msg("%s, element %lld: moved by %g, and by %g with micro-batches", all[p], (long long)i,
                         one, many);
        }
        assert_true(most > 1e-3);
        for (int i = 0; i < 3; i++) free(found[i].values);
    }
}

static int64_t sent_by_all(const result *r, int world)
{
    int64_t sum = 0;
    for (int i = 0; i < world; i++) sum += r->after[i].bytes_sent - r->before[i].bytes_sent;
    return sum;
}

/* With a server on every rank, state is sharded as under zero1. Gradients are sent to the rank that has the
 * shard, and this rank sends the parameters back. */
static void a_server_on_every_rank_moves_the_bytes_of_zero1_and_gives_its_numbers(void **state)
{
    (void)state;
    static const char *const servers[] = {"--servers 2", "--servers 3", "--servers 4"};
    for (int n = 2; n <= 4; n++) {
        const shard_case sync = {"wine_mlp", n, servers[n - 2], 0, 0, false, SHARED_DIVIDE_AFTER};
        const shard_case zero1 = {"wine_mlp", n, "--algorithm two-shot", 0, 0, false, SHARED_DIVIDE_AFTER};
        result ps, ring;
        run_engine(&sync, &sync_ps, "sync", 0, &ps);
        run(&zero1, "zero1", 0, &ring);
        for (int r = 0; r < n; r++) assert_true(ps.hash[r] == ring.hash[r]);
        assert_int_equal(sent_by_all(&ps, n), 2 * (n - 1) * 4 * ps.elements);
        assert_int_equal(sent_by_all(&ring, n), 2 * (n - 1) * 4 * ring.padded);
        free(ps.values);
        free(ring.values);
    }
}

int main(int argc, char **argv)
{
    is_long = argc > 1 && strcmp(argv[1], "--long") == 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_stage_is_bit_identical_to_ddp),
        cmocka_unit_test(with_clipping_every_stage_equals_ddp_to_rounding),
        cmocka_unit_test(a_stage_holds_its_shards_to_the_byte),
        cmocka_unit_test(stages_move_the_bytes_of_their_collectives),
        cmocka_unit_test(under_fsdp_later_ranks_may_have_nothing_of_a_parameter),
        cmocka_unit_test(parameters_that_are_kept_for_the_backward_pass_are_gathered_once),
        cmocka_unit_test(groups_cut_state_among_neighbors_and_replicate_it),
        cmocka_unit_test(groups_move_the_bytes_of_their_collectives),
        cmocka_unit_test(with_mixed_precision_every_stage_is_bit_identical_to_ddp),
        cmocka_unit_test(mixed_precision_halves_parameters_gradients_and_traffic),
        cmocka_unit_test(masters_add_up_updates_that_bfloat16_loses),
        cmocka_unit_test(sums_of_micro_batches_are_not_rounded_to_bfloat16),
        cmocka_unit_test(a_server_on_every_rank_moves_the_bytes_of_zero1_and_gives_its_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
