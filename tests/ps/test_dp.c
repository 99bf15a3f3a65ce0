/* Tests the policy `dp`: it forms PyTorch's chunks, gives the same result as one rank with the whole batch,
 * gives bit-identical results for every way to transfer tensors, and needs the memory of each phase that the
 * formula says. */
#include "common/base/random.h"
#include "common/net/status_table.h"
#include "common/net/transport_impl.h"
#include "common/sync/engine.h"
#include "harness/train/local_ranks.h"
#include "harness/train/trainer.h"
#include "harness/verify/golden.h"
#include "ps/dataparallel/dataparallel.h"
#include "ps/policy.h"
#include "ps/ps.h"
#include "tests/common/net/transport_fault.h"
#include "tests/support/check.h"
#include "tests/support/sanitized.h"

#include <math.h>
#include <stdlib.h>

/* Returns the number of bytes in the ledger at the end of a phase, without workspace. */
static int64_t measured_bytes(const ledger *l, ps_dp_phase p)
{
    ledger_phase phase = ps_dp_phase_describe(p)->phase;
    return l->phase_end[phase] - l->phase_end_classes[phase][LEDGER_WORKSPACE];
}

enum { STEPS = SANITIZED ? 2 : 3, MOST_RANKS = 5, OPTIONS_SIZE = 512 };

/* ---- a job ------------------------------------------------------------------------------------- */

typedef struct training {
    const char *file, *options; /* `file` is a golden file, from which the model and the data come */
    const sync_engine_type *engine;
    const char *policy;
    int world;
    int64_t samples; /* number of samples in the whole batch, or 0 for full batches */
    const optimizer_options *optimizer;
    transport_fault_kind fault; /* fault of a message from rank 1 */

    golden_file *golden;
    nn_model *model;
    status_table *table;
    transport_hub *hub;
    bool threads; /* true if ranks have a transport hub */
    uint64_t token, hash;
    _Alignas(16) char storage[OPTIONS_SIZE];
    ledger ledgers[MOST_RANKS];
    ps_dp_sizes sizes;
    bool has_sizes;
    double loss;   /* loss of rank 0 in the last step */
    float *params; /* [parameters] in PyTorch's order */
} training;

/* A source that shortens its batches to `samples` samples, like the last batch of an epoch. */
typedef struct short_source {
    batch_source base;
    batch_source *whole;
    int64_t samples, rows; /* `rows` is the number of targets per sample */
} short_source;

static status short_next(batch_source *base, int64_t step, batch_view *out)
{
    short_source *s = (short_source *)base;
    TRY(batch_source_next(s->whole, step, out));
    if (s->samples == 0) return STATUS_OK;
    out->count = s->samples;
    out->targets_counted = 0;
    for (int64_t i = 0; i < s->samples * s->rows; i++)
        out->targets_counted += ((const int32_t *)out->targets)[i] != LOSS_IGNORE;
    return STATUS_OK;
}

static void short_give_back(batch_source *base, const batch_view *b)
{
    batch_source_return(((short_source *)base)->whole, b);
}

static void short_close(batch_source *base)
{
    batch_source_close(&((short_source *)base)->whole);
}

static const batch_source_type short_type = {short_next, batch_source_always_ready, short_give_back,
                                             short_close};

static int64_t part(int64_t samples, int world, int rank)
{
    int64_t chunk = (samples + world - 1) / world, left = samples - chunk * rank;
    return left < 0 ? 0 : left < chunk ? left : chunk;
}

static status export_params(training *t, trainer *r)
{
    param_set *set = trainer_params(r);
    int64_t at = 0;
    t->params = calloc((size_t)t->model->parameter_elements, sizeof *t->params);
    if (!t->params) return STATUS_SYSTEM;
    for (int i = 0; i < t->model->param_count; i++) {
        TRY(param_set_export(set, trainer_stream(r), set->params.data, i, DTYPE_F32, t->params + at));
        at += t->model->params[i].elements;
    }
    return param_set_hash(set, trainer_stream(r), &t->hash);
}

static status train(local_ranks *group, int rank, void *context)
{
    training *t = context;
    const golden_file *f = t->golden;
    bool whole = t->engine == &sync_none;
    trainer_config config = {.sync.rank = rank,
                             .sync.world = t->world,
                             .sync.job_token = t->token,
                             .device = "cpu",
                             .threads = 1,
                             .model = t->model,
                             .engine = t->engine,
                             .sync.options = t->storage,
                             .sync.policy = t->policy,
                             .optimizer = t->optimizer ? t->optimizer : &f->optimizer,
                             .batch = whole ? f->batch * f->world : f->batch,
                             .total_steps = STEPS,
                             .sync.slot = status_table_slot(t->table, rank),
                             .sync.stall_timeout_ns = (t->fault == TRANSPORT_DROP ? 5 : 60) * NS_PER_S,
                             .sync.hub = t->hub};
    config.sizes[0] = whole ? t->samples : part(t->samples, t->world, rank);
    short_source source = {
        .base = {.type = &short_type}, .samples = t->samples, .rows = t->model->rows_per_sample};
    trainer *r = NULL;
    step_result result;
    status rc;
    TRY_GOTO(rc, trainer_open(&config, &r), out);
    TRY_GOTO(rc, param_set_initialize(trainer_params(r), trainer_stream(r), 7 + (uint64_t)rank),
             out); /* ranks have different parameters, and rank 0's must be used */
    TRY_GOTO(rc, golden_source_open(f, t->model, 0, f->world, &source.whole), out);
    TRY_GOTO(rc, local_ranks_connect(group, rank, r), out);
    if (t->fault && rank == 1) {
        transport *sender = dp_engine_of(trainer_engine(r))->hub->port.transport;
        transport_inject(sender, t->fault, 2);
    }
    for (int64_t step = 0; step < STEPS; step++) {
        TRY_GOTO(rc, trainer_step(r, &source.base, step, step, &result), out);
        if (rank == 0) t->loss = result.loss;
    }
    t->ledgers[rank] = *trainer_ledger(r);
    if (rank == 0 && !whole) t->has_sizes = ps_dp_read_sizes(trainer_engine(r), &t->sizes);
    TRY_GOTO(rc, sync_flush(trainer_engine(r)), out);
    if (rank == t->world - 1) TRY_GOTO(rc, export_params(t, r), out);
    rc = local_ranks_barrier(group);
out:
    if (source.whole) batch_source_close(&source.whole);
    trainer_close(&r);
    return rc;
}

static status try(training *t)
{
    char text[256], path[256], *words[16];
    const char *positional[16];
    int count = 0, positional_count = 0;
    option_binding binding = {.table = t->engine->options, .storage = t->storage};
    snprintf(text, sizeof text, "%s", t->options);
    for (char *word = strtok(text, " "); word; word = strtok(NULL, " ")) words[count++] = word;
    assert_ok(options_defaults(&binding, 1));
    if (t->engine != &sync_none)
        assert_ok(options_parse(&binding, 1, count, words, positional, &positional_count));
    snprintf(path, sizeof path, "tests/golden/%s.json", t->file);
    assert_ok(golden_open(path, &t->golden));
    if (t->engine != &sync_none) t->golden->world = t->world; /* batches depend on the rank */
    t->token = random_token();
    assert_ok(model_build(&t->golden->model, &t->model));
    assert_ok(status_table_create(t->token, t->world, &t->table));
    if (t->threads) assert_ok(transport_hub_open(&t->hub));
    status rc = local_ranks_run(t->world, train, t);
    transport_hub_close(&t->hub);
    status_table_close(&t->table);
    return rc;
}

static void run(training *t)
{
    status rc = try(t);
    if (rc != STATUS_OK)
        fail_msg("%s, %d ranks, %s: %s: %s", t->file, t->world, t->options, status_name(rc), error_message());
}

static void drop(training *t)
{
    free(t->params);
    nn_model_free(&t->model);
    golden_close(&t->golden);
}

/* ---- chunks ------------------------------------------------------------------------------------ */

typedef struct chunk_case {
    const char *model;
    bool within;
    int count;
    int64_t bytes[16];
} chunk_case;

/* Chunks that PyTorch forms for ResNet-50. */
static const chunk_case chunk_cases[] = {
    {"resnet50",
     false,
     9,
     {11821312, 12355584, 12093440, 13639680, 12615680, 13639680, 13651968, 12406784, 4000}},
    {"resnet50",
     true,
     13,
     {9724160, 9986048, 9994240, 6569984, 9441280, 4210688, 8404992, 4198400, 9441280, 8409088, 9441280,
      4210688, 8196000}},
};

static void chunks_are_those_of_pytorch(void **state)
{
    (void)state;
    device *d;
    assert_ok(device_open(&(device_config){.name = "cpu", .world = 1, .threads = 1}, &d));
    for (size_t c = 0; c < sizeof chunk_cases / sizeof chunk_cases[0]; c++) {
        const chunk_case *is = &chunk_cases[c];
        model_options options;
        nn_model *model;
        nn_program *program;
        param_set *set;
        dp_chunks chunks;
        assert_ok(options_defaults(&(option_binding){.table = &model_option_table, .storage = &options}, 1));
        options.name = is->model;
        assert_ok(model_build(&options, &model));
        nn_program_config config = {.batch = 1, .mode = NN_TRAIN, .type = DTYPE_F32, .world = 1};
        assert_ok(nn_program_compile(model, &config, &program));
        assert_ok(param_set_open(d, model, program, &(param_set_config){.gradients = false}, &set));
        ps_memory memory = {0};
        assert_ok(dp_chunks_make(set, is->within, 10485760, &memory, &chunks));
        assert_int_equal(chunks.count, is->count);
        int next = 0;
        for (int i = 0; i < chunks.count; i++) {
            assert_int_equal(chunks.list[i].bytes, is->bytes[i]);
            assert_int_equal(chunks.list[i].first, next);
            next += chunks.list[i].count;
        }
        assert_int_equal(next, model->param_count);
        ps_memory_free(&memory);
        param_set_close(&set);
        nn_program_free(&program);
        nn_model_free(&model);
    }
    device_close(&d);
}

/* ---- results ----------------------------------------------------------------------------------- */

static void the_bits_do_not_depend_on_how_tensors_travel_or_how_long_they_live(void **state)
{
    (void)state;
    static const char *const options[] = {"--payload shm",
                                          "--payload zmq",
                                          "--payload zmq --transport tcp",
                                          "",
                                          "--dp-lifetimes lean",
                                          "--keep-grads --server-threads 3"};
    enum { WAYS = sizeof options / sizeof options[0] };
    uint64_t first = 0;
    for (int i = 0; i < WAYS; i++) {
        training t = {.file = "bert_tiny_w2_global_loss",
                      .options = options[i],
                      .engine = &sync_ps,
                      .policy = "dp",
                      .world = 3,
                      .threads = options[i][0] == '\0'};
        run(&t);
        if (i == 0) first = t.hash;
        if (t.hash != first)
            fail_msg("'%s' ends with %016llx, '%s' with %016llx", options[i], (unsigned long long)t.hash,
                     options[0], (unsigned long long)first);
        drop(&t);
    }
}

typedef struct whole_case {
    const char *file, *options;
    int world;
    int64_t samples; /* number of samples in the batch, or 0 for a full batch */
} whole_case;

/* Chunks of different sizes, ranks without samples, and one rank. The results differ only by the order of
 * sums. */
static const whole_case whole_cases[] = {
    {"wine_mlp_w4", "", 4, 0},
    {"wine_mlp_w4", "", 4, 9},              /* samples of the ranks: 3, 3, 3, 0 */
    {"wine_mlp_w4", "--payload zmq", 4, 5}, /* 2, 2, 1, 0 */
    {"wine_mlp_w4", "", 4, 1},              /* 1, 0, 0, 0 */
    {"bert_tiny_w2_global_loss", "--payload zmq", 2, 5},
    {"wine_mlp_w1", "", 1, 0},
};

static void ranks_together_make_of_a_batch_what_one_rank_does(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof whole_cases / sizeof whole_cases[0]; i++) {
        const whole_case *c = &whole_cases[i];
        training many = {.file = c->file,
                         .options = c->options,
                         .engine = &sync_ps,
                         .policy = "dp",
                         .world = c->world,
                         .samples = c->samples};
        training one = {.file = c->file,
                        .options = "",
                        .engine = &sync_none,
                        .policy = "none",
                        .world = 1,
                        .samples = c->samples};
        run(&many);
        run(&one);
        double worst = 0;
        for (int64_t e = 0; e < one.model->parameter_elements; e++) {
            double off = fabs((double)one.params[e] - (double)many.params[e]);
            if (!(off <= worst)) worst = off;
        }
        if (!(worst < 2e-4) || !(fabs(one.loss - many.loss) < 1e-4))
            fail_msg("%s, %d ranks, %d samples: parameters differ by %.3g, losses are %.9g and %.9g", c->file,
                     c->world, (int)c->samples, worst, many.loss, one.loss);
        drop(&many);
        drop(&one);
    }
}

typedef struct dp_fault_case {
    transport_fault_kind fault;
    status code;
    const char *text;
} dp_fault_case;

static const dp_fault_case fault_cases[] = {
    {TRANSPORT_NO_FAULT, STATUS_OK, ""},
    {TRANSPORT_DOUBLE, STATUS_OK, ""},
    {TRANSPORT_DROP, STATUS_PEER,
     "rank 1 has not sent outputs of step 1 within the stall limit of 5.00 s"}, /* all ranks wait */
    {TRANSPORT_FLIP, STATUS_IO, "damaged on the way"},
};

static void a_spoiled_message_is_named_and_a_double_one_changes_nothing(void **state)
{
    (void)state;
    uint64_t unspoiled = 0;
    for (size_t i = 0; i < sizeof fault_cases / sizeof fault_cases[0]; i++) {
        const dp_fault_case *c = &fault_cases[i];
        training t = {.file = "wine_mlp_w4",
                      .options = "--payload zmq",
                      .engine = &sync_ps,
                      .policy = "dp",
                      .world = 3,
                      .fault = c->fault};
        status rc = try(&t);
        if (rc != c->code || !strstr(error_message(), c->text))
            fail_msg("fault %d: found %s '%s', expected %s '%s'", (int)c->fault, status_name(rc),
                     error_message(), status_name(c->code), c->text);
        error_clear();
        if (i == 0) unspoiled = t.hash;
        if (rc == STATUS_OK) assert_true(t.hash == unspoiled);
        drop(&t);
    }
}

/* ---- memory ------------------------------------------------------------------------------------ */

static const optimizer_options sgd = {.kind = OPTIMIZER_SGD, .lr = 0.01};
static const optimizer_options momentum = {.kind = OPTIMIZER_SGD, .lr = 0.01, .momentum = 0.9};
static const optimizer_options adam = {
    .kind = OPTIMIZER_ADAM, .lr = 0.001, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};

typedef struct memory_case {
    const char *file, *options;
    int world;
    const optimizer_options *optimizer;
    int64_t states, kept; /* S and G of the formula, in units of P */
} memory_case;

static const memory_case memory_cases[] = {
    {"bert_tiny_w2_global_loss", "", 2, &adam, 2, 0},
    {"bert_tiny_w2_global_loss", "", 4, &adam, 2, 0},
    {"bert_tiny_w2_global_loss", "", 2, &sgd, 0, 0},
    {"bert_tiny_w2_global_loss", "--payload zmq", 2, &momentum, 1, 0},
    {"bert_tiny_w2_global_loss", "--keep-grads", 4, &adam, 2, 1},
    {"bert_tiny_w2_global_loss", "--dp-lifetimes lean", 2, &adam, 2, 0},
    {"bert_tiny_w2_global_loss", "--dp-lifetimes lean --keep-grads", 2, &adam, 2, 1},
    {"bert_tiny_w2", "--dp-loss replica", 2, &adam, 2, 0},
    {"resnet18_32_w2_silu", "", 2, &momentum, 1, 0},
};

static void the_ledger_of_every_phase_is_what_the_formula_says(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof memory_cases / sizeof memory_cases[0]; i++) {
        const memory_case *c = &memory_cases[i];
        if (SANITIZED && strncmp(c->file, "resnet18", 8) == 0) continue; /* this case would take 20 s */
        training t = {.file = c->file,
                      .options = c->options,
                      .engine = &sync_ps,
                      .policy = "dp",
                      .world = c->world,
                      .optimizer = c->optimizer};
        run(&t);
        assert_true(t.has_sizes);
        int64_t p = t.model->parameter_elements * 4, limit = p / 100;
        assert_int_equal(t.sizes.parameters, p);
        assert_int_equal(t.sizes.state, c->states * p);
        assert_int_equal(t.sizes.kept, c->kept * p);
        for (int phase = 0; phase < PS_DP_PHASE_COUNT; phase++) {
            int64_t device0 = measured_bytes(&t.ledgers[0], (ps_dp_phase)phase);
            int64_t formula = ps_dp_difference(&t.sizes, (ps_dp_phase)phase);
            for (int r = 1; r < c->world; r++) {
                int64_t measured = device0 - measured_bytes(&t.ledgers[r], (ps_dp_phase)phase);
                if (llabs(measured - formula) <= limit) continue;
                fail_msg("%s, %d ranks, '%s', %s: device 0 has %lld bytes more than device %d, the formula "
                         "says %lld, P is %lld",
                         c->file, c->world, c->options, ps_dp_phase_describe((ps_dp_phase)phase)->name,
                         (long long)measured, r, (long long)formula, (long long)p);
            }
        }
        drop(&t);
    }
}

/* Compares device 0 and device 1 with the absolute bytes of the table, which follow from P and S. */
static void device_0_and_another_hold_what_the_table_says(void **state)
{
    (void)state;
    training t = {.file = "bert_tiny_w2_global_loss",
                  .options = "",
                  .engine = &sync_ps,
                  .policy = "dp",
                  .world = 2,
                  .optimizer = &adam};
    run(&t);
    int64_t p = t.sizes.parameters, s = t.sizes.state, batch[2], own[2];
    for (int r = 0; r < 2; r++) batch[r] = t.ledgers[r].phase_end_classes[LEDGER_PHASE_BEGIN][LEDGER_BATCH];
    const struct {
        ps_dp_phase phase;
        int64_t device0, other;
    } table[] = {{PS_DP_OPTIMIZED, 2 * p + s, 0},
                 {PS_DP_REPLICATED, p + s, p},
                 {PS_DP_REDUCE_BEGINS, 2 * p + s, p},
                 {PS_DP_REDUCE_ENDS, 3 * p + s, p}};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        for (int r = 0; r < 2; r++) {
            own[r] = measured_bytes(&t.ledgers[r], table[i].phase);
            if (table[i].phase != PS_DP_OPTIMIZED) own[r] -= batch[r];
        }
        if (own[0] != table[i].device0 || own[1] != table[i].other)
            fail_msg("%s: found %lld and %lld bytes, expected %lld and %lld",
                     ps_dp_phase_describe(table[i].phase)->name, (long long)own[0], (long long)own[1],
                     (long long)table[i].device0, (long long)table[i].other);
    }
    drop(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunks_are_those_of_pytorch),
        cmocka_unit_test(the_bits_do_not_depend_on_how_tensors_travel_or_how_long_they_live),
        cmocka_unit_test(ranks_together_make_of_a_batch_what_one_rank_does),
        cmocka_unit_test(a_spoiled_message_is_named_and_a_double_one_changes_nothing),
        cmocka_unit_test(the_ledger_of_every_phase_is_what_the_formula_says),
        cmocka_unit_test(device_0_and_another_hold_what_the_table_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
