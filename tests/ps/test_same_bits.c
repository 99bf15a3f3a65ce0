/* Trains a network for some steps, and checks that results are bit-identical: with sync for any number of
 * servers, partition size and payload, with ssp and a staleness of 0, and with the two-shot all-reduce of the
 * ring engine. */
#include "common/base/random.h"
#include "common/net/status_table.h"
#include "common/sync/engine.h"
#include "harness/train/local_ranks.h"
#include "harness/train/trainer.h"
#include "harness/verify/golden.h"
#include "ps/policy.h"
#include "ps/ps.h"
#include "ring/ring.h"
#include "tests/support/check.h"

#include <stdlib.h>

/* A division by 3 ranks rounds. The golden files give only models and data. */
enum { WORLD = 3, STEPS = 4, OPTIONS_SIZE = 1024 };

typedef struct engine_case {
    const sync_engine_type *engine;
    const char *policy, *options;
} engine_case;

static const engine_case cases[] = {
    {&sync_ring, "ddp", "--algorithm two-shot"},
    {&sync_ps, "sync", ""},
    {&sync_ps, "sync", "--payload zmq --transport tcp"},
    {&sync_ps, "sync", "--servers 3 --partition-bytes 1001"},
    {&sync_ps, "sync", "--servers 2 --payload shm --server-threads 2 --priority fifo"},
    {&sync_ps, "sync", "--server-optimizer off --servers 3"},
    {&sync_ps, "ssp", "--staleness 0"},
};
enum { CASES = sizeof cases / sizeof cases[0] };

typedef struct training {
    const engine_case *c;
    golden_file *file;
    nn_model *model;
    status_table *table;
    uint64_t token;
    int divide;
    _Alignas(16) char options[OPTIONS_SIZE];
    uint64_t hashes[WORLD];
} training;

static status train(local_ranks *group, int rank, void *context)
{
    training *t = context;
    const golden_file *f = t->file;
    trainer_config config = {.sync.rank = rank,
                             .sync.world = WORLD,
                             .sync.job_token = t->token,
                             .device = "cpu",
                             .threads = 1,
                             .model = t->model,
                             .engine = t->c->engine,
                             .sync.options = t->options,
                             .sync.policy = t->c->policy,
                             .optimizer = &f->optimizer,
                             .batch = f->batch,
                             .total_steps = STEPS,
                             .sync.slot = status_table_slot(t->table, rank),
                             .sync.stall_timeout_ns = 60 * NS_PER_S,
                             .sync.divide = t->divide};
    trainer *r = NULL;
    batch_source *source = NULL;
    step_result result;
    status rc;
    TRY_GOTO(rc, trainer_open(&config, &r), out);
    TRY_GOTO(rc, param_set_initialize(trainer_params(r), trainer_stream(r), 7), out);
    TRY_GOTO(rc, golden_source_open(f, t->model, rank, 1, &source), out);
    TRY_GOTO(rc, local_ranks_connect(group, rank, r), out);
    for (int64_t step = 0; step < STEPS; step++)
        TRY_GOTO(rc, trainer_step(r, source, step, step, &result), out);
    TRY_GOTO(rc, sync_flush(trainer_engine(r)), out);
    TRY_GOTO(rc, param_set_hash(trainer_params(r), trainer_stream(r), &t->hashes[rank]), out);
    rc = local_ranks_barrier(group);
out:
    if (source) batch_source_close(&source);
    trainer_close(&r);
    return rc;
}

static void set_options(training *t)
{
    option_binding binding = {.table = t->c->engine->options, .storage = t->options};
    char text[256], *words[16];
    const char *positional[16];
    int count = 0, positional_count = 0;
    assert_true(t->c->engine->options_size <= OPTIONS_SIZE);
    snprintf(text, sizeof text, "%s", t->c->options);
    for (char *word = strtok(text, " "); word; word = strtok(NULL, " ")) words[count++] = word;
    assert_ok(options_defaults(&binding, 1));
    assert_ok(options_parse(&binding, 1, count, words, positional, &positional_count));
}

static uint64_t run_case(const engine_case *c, const char *path, int divide)
{
    training t = {.c = c, .token = random_token(), .divide = divide};
    set_options(&t);
    assert_ok(golden_open(path, &t.file));
    assert_ok(model_build(&t.file->model, &t.model));
    assert_ok(status_table_create(t.token, WORLD, &t.table));
    status rc = local_ranks_run(WORLD, train, &t);
    if (rc != STATUS_OK) fail_msg("%s %s: %s: %s", c->policy, c->options, status_name(rc), error_message());
    for (int r = 1; r < WORLD; r++)
        if (t.hashes[r] != t.hashes[0])
            fail_msg("%s %s: ranks 0 and %d end with different bits", c->policy, c->options, r);
    status_table_close(&t.table);
    nn_model_free(&t.model);
    golden_close(&t.file);
    return t.hashes[0];
}

static void all_ways_end_with_the_same_bits(void **state)
{
    (void)state;
    static const char *const files[] = {"tests/golden/wine_mlp_w4.json", "tests/golden/bert_tiny_w2.json"};
    uint64_t by_divide[2];
    for (size_t f = 0; f < sizeof files / sizeof files[0]; f++) {
        for (int divide = SHARED_DIVIDE_BEFORE; divide <= SHARED_DIVIDE_AFTER; divide++) {
            uint64_t first = 0;
            for (int i = 0; i < CASES; i++) {
                uint64_t hash = run_case(&cases[i], files[f], divide);
                if (i == 0) first = hash;
                if (hash != first)
                    fail_msg("%s, divided %s: '%s %s' ends with %016llx, '%s %s' with %016llx", files[f],
                             divide == SHARED_DIVIDE_BEFORE ? "before" : "after", cases[i].policy,
                             cases[i].options, (unsigned long long)hash, cases[0].policy, cases[0].options,
                             (unsigned long long)first);
            }
            by_divide[divide - SHARED_DIVIDE_BEFORE] = first;
        }
    }
    /* Ensures that the test detects a division in the wrong place. */
    assert_true(by_divide[0] != by_divide[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_ways_end_with_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
