/* A run is saved, ended, loaded into newly opened objects and continued. Losses, parameters, buffers and
 * optimizer state are bit-identical to a run without interruption. */
#include "tests/common/checkpoint/fixture.h"

#include "common/data/batches.h"
#include "harness/train/trainer.h"

#include <stdlib.h>
#include <string.h>

enum { SEED = 11, MOST_STEPS = 16 };

typedef struct resume_case {
    model_options model;
    const char *data;
    optimizer_options optimizer;
    int64_t batch, samples; /* Samples per batch, and samples of the synthetic data set. */
    int64_t stop, steps;
} resume_case;

/* The cases use everything that depends on the number of the step: schedules, warm-up, bias corrections, and
 * the first update, which dampening does not affect. Some runs stop within an epoch, others at its end. */
static const resume_case cases[] = {
    {.model = {.name = "toy"},
     .data = "synthetic",
     .optimizer = {.kind = OPTIMIZER_SGD,
                   .lr = 0.05,
                   .momentum = 0.9,
                   .dampening = 0.5,
                   .schedule = LR_STEP,
                   .schedule_steps = 3,
                   .gamma = 0.5},
     .batch = 4,
     .samples = 30,
     .stop = 1,
     .steps = 9},
    {.model = {.name = "wine_mlp"},
     .data = "wine",
     .optimizer = {.kind = OPTIMIZER_ADAMW,
                   .lr = 0.01,
                   .weight_decay = 0.1,
                   .beta1 = 0.9,
                   .beta2 = 0.99,
                   .eps = 1e-8,
                   .schedule = LR_COSINE,
                   .warmup_steps = 5},
     .batch = 16,
     .stop = 10,
     .steps = 16},
    {.model = {.name = "wine_mlp"},
     .data = "wine",
     .optimizer = {.kind = OPTIMIZER_ADAM,
                   .lr = 0.01,
                   .beta1 = 0.8,
                   .beta2 = 0.9,
                   .eps = 1e-8,
                   .schedule = LR_LINEAR,
                   .clip_norm = 0.5},
     .batch = 16,
     .stop = 8,
     .steps = 12},
    {.model = {.name = "resnet18", .image = 32, .classes = 10},
     .data = "synthetic:3x32x32:10",
     .optimizer = {.kind = OPTIMIZER_SGD, .lr = 0.01, .momentum = 0.9, .weight_decay = 1e-4},
     .batch = 2,
     .samples = 5,
     .stop = 1,
     .steps = 3},
};
enum { CASES = sizeof cases / sizeof cases[0] };

typedef struct run {
    const resume_case *c;
    status_table *table;
    dataset *set;
    nn_model *model;
    trainer *trainer;
    batch_source *source;
    model_options options;
    option_binding binding;
    checkpoint_arenas arenas;
    checkpoint_subject subject;
} run;

static void open_data(run *r, int64_t first_step)
{
    data_form form = data_form_of_model(r->model);
    dataset_config config = {.spec = r->c->data,
                             .seed = SEED,
                             .model = &form,
                             .synthetic_samples = {r->c->samples, r->c->samples}};
    must(dataset_open(&config, &r->set));
    batches_config batches = {.set = r->set,
                              .part = DATA_TRAIN,
                              .purpose = BATCHES_TRAIN,
                              .model = form,
                              .seed = SEED,
                              .world = 1,
                              .batch = r->c->batch,
                              .drop_last = true,
                              .first_step = first_step};
    must(batches_open(&batches, &r->source));
}

static status open_trainer(run *r, const char *device)
{
    trainer_config config = {.sync.world = 1,
                             .device = device,
                             .threads = 1,
                             .model = r->model,
                             .engine = &sync_none,
                             .sync.policy = "none",
                             .optimizer = &r->c->optimizer,
                             .batch = r->c->batch,
                             .total_steps = r->c->steps,
                             .sync.slot = status_table_slot(r->table, 0),
                             .sync.stall_timeout_ns = 60 * NS_PER_S};
    sync_blob handshake;
    TRY(trainer_open(&config, &r->trainer));
    TRY(sync_handshake(trainer_engine(r->trainer), &handshake));
    return sync_connect(trainer_engine(r->trainer), &handshake);
}

static void run_open(run *r, const resume_case *c, const char *device, uint64_t seed, int64_t first_step)
{
    *r = (run){.c = c};
    must(model_build(&c->model, &r->model));
    must(model_resolve(&c->model, &r->options));
    must(status_table_create(1, 1, &r->table));
    must(open_trainer(r, device));
    open_data(r, first_step);
    must(param_set_initialize(trainer_params(r->trainer), trainer_stream(r->trainer), seed));
    r->binding = (option_binding){.table = &model_option_table, .storage = &r->options};
    r->arenas = checkpoint_arenas_of(trainer_params(r->trainer), trainer_stream(r->trainer),
                                     trainer_optimizer(r->trainer));
    r->subject = (checkpoint_subject){.model = r->model,
                                      .type = trainer_params(r->trainer)->type,
                                      .model_options = &r->binding,
                                      .optimizer = &c->optimizer};
}

static void run_close(run *r)
{
    batch_source_close(&r->source);
    trainer_close(&r->trainer);
    dataset_close(&r->set);
    status_table_close(&r->table);
    nn_model_free(&r->model);
}

static void run_steps(run *r, int64_t first, int64_t end, double *losses)
{
    for (int64_t s = first; s < end; s++) {
        step_result result;
        must(trainer_step(r->trainer, r->source, s, s, &result));
        losses[s] = result.loss;
    }
    must(sync_flush(trainer_engine(r->trainer)));
}

static void save(run *r, const char *path, int64_t step)
{
    batch_position at = batch_position_of_step(r->source, step);
    checkpoint_progress progress = {.step = step,
                                    .optimizer_step = step,
                                    .epoch = at.epoch,
                                    .epoch_step = at.epoch_step,
                                    .batches_tracked = step,
                                    .seed = SEED};
    checkpoint_source source = checkpoint_arenas_source(&r->arenas);
    must(checkpoint_save(path, &r->subject, &progress, &source));
}

/* Loads the checkpoint. Returns the step with which the run goes on. */
static int64_t load(run *r, const char *path)
{
    checkpoint *c;
    checkpoint_sink sink = checkpoint_arenas_sink(&r->arenas);
    must(checkpoint_open(path, &c));
    must(checkpoint_load(c, &r->subject, &sink));
    checkpoint_progress p = checkpoint_get_info(c)->progress;
    checkpoint_close(&c);
    assert_int_equal(p.seed, SEED);
    assert_int_equal(batch_step_of_position(r->source, (batch_position){p.epoch, p.epoch_step}), p.step);
    assert_int_equal(p.optimizer_step, p.step);
    return p.step;
}

static void expect_same_arena(const run *found, const char *what, const device_memory *f,
                              const device_memory *w, int64_t elements)
{
    const param_set *set = trainer_params(found->trainer);
    if (elements == 0 || memcmp(f->data, w->data, (size_t)(elements * dtype_size(set->type))) == 0) return;
    fail_msg("model %s after %lld + %lld steps: its %s differ", found->model->name, (long long)found->c->stop,
             (long long)(found->c->steps - found->c->stop), what);
}

static void expect_same_run(run *found, run *wanted)
{
    const param_set *f = trainer_params(found->trainer), *w = trainer_params(wanted->trainer);
    expect_same_arena(found, "parameters", &f->params, &w->params, f->arena_elements);
    expect_same_arena(found, "buffers", &f->buffers, &w->buffers, f->buffer_elements);
    for (int i = 0; i < optimizer_state_count(&found->c->optimizer); i++)
        expect_same_arena(found, "optimizer state", optimizer_state(trainer_optimizer(found->trainer), i),
                          optimizer_state(trainer_optimizer(wanted->trainer), i), f->arena_elements);
}

static void resume(const char *folder, const resume_case *c, const char *device)
{
    run whole, first, second;
    double wanted[MOST_STEPS], found[MOST_STEPS];
    const char *path = path_in(folder, "c.safetensors");
    run_open(&whole, c, device, SEED, 0);
    run_steps(&whole, 0, c->steps, wanted);
    run_open(&first, c, device, SEED, 0);
    run_steps(&first, 0, c->stop, found);
    save(&first, path, c->stop);
    run_close(&first);
    run_open(&second, c, device, SEED + 1, c->stop);
    run_steps(&second, load(&second, path), c->steps, found);
    for (int64_t s = 0; s < c->steps; s++)
        if (memcmp(&found[s], &wanted[s], sizeof wanted[s]) != 0)
            fail_msg("model %s, step %lld: found the loss %.17g, wanted %.17g", whole.model->name,
                     (long long)s, found[s], wanted[s]);
    expect_same_run(&second, &whole);
    run_close(&whole);
    run_close(&second);
}

static void on_the_reference_device_a_resumed_run_has_the_bits_of_a_whole_one(void **state)
{
    for (int i = 0; i < CASES; i++) resume(*state, &cases[i], "reference");
}

static void on_the_cpu_a_resumed_run_has_the_bits_of_a_whole_one(void **state)
{
    for (int i = 0; i < CASES; i++) resume(*state, &cases[i], "cpu");
}

static void without_its_state_or_its_step_a_run_goes_elsewhere(void **state)
{
    run whole, other;
    double wanted[MOST_STEPS], found[MOST_STEPS];
    const resume_case *c = &cases[1];
    const char *path = path_in(*state, "c.safetensors");
    run_open(&whole, c, "reference", SEED, 0);
    run_steps(&whole, 0, c->stop, wanted);
    save(&whole, path, c->stop);
    run_steps(&whole, c->stop, c->steps, wanted);
    for (int fresh = 0; fresh < 2; fresh++) {
        run_open(&other, c, "reference", SEED + 1, 0);
        if (fresh) other.subject.optimizer = NULL;
        int64_t step = load(&other, path);
        run_steps(&other, fresh ? step : step - 1, c->steps, found);
        assert_true(found[c->steps - 1] != wanted[c->steps - 1]);
        run_close(&other);
    }
    run_close(&whole);
}

int main(void)
{
#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, folder_open, folder_close)
    const struct CMUnitTest tests[] = {
        IN_FOLDER(on_the_reference_device_a_resumed_run_has_the_bits_of_a_whole_one),
        IN_FOLDER(on_the_cpu_a_resumed_run_has_the_bits_of_a_whole_one),
        IN_FOLDER(without_its_state_or_its_step_a_run_goes_elsewhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
