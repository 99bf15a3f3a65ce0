/* Runs the unmodified train loop with engine `none` on virtual devices. Tests the time of a step, many ranks
 * in one thread, and that the ledger is the same as on a CPU. */
#include "common/data/batches.h"
#include "common/data/dataset.h"
#include "common/sim/fiber.h"
#include "common/sim/price.h"
#include "harness/train/trainer.h"
#include "models/models.h"
#include "tests/common/device/sim/bench.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

enum { STEPS = 3 };

typedef struct job {
    trainer *trainer;
    rank_slot slot;
    batch_source *source;
    step_result results[STEPS];
    int done;
} job;

static optimizer_options sgd(double momentum)
{
    optimizer_options o = optimizer_defaults(OPTIMIZER_SGD);
    o.momentum = momentum;
    return o;
}

static dataset *open_data(const nn_model *model)
{
    data_form form = data_form_of_model(model);
    dataset_config config = {.spec = "synthetic", .seed = 1, .model = &form, .synthetic_samples = {64, 16}};
    dataset *set;
    must(dataset_open(&config, &set));
    return set;
}

static void open_slow_job(job *j, const char *slow, const char *device, simulation *s, int rank,
                          const nn_model *model, const dataset *set, const optimizer_options *optimizer,
                          int64_t batch)
{
    trainer_config config = {.sync.rank = rank,
                             .sync.world = 1,
                             .device = device,
                             .slow = slow,
                             .threads = 1,
                             .simulation = s,
                             .model = model,
                             .engine = &sync_none,
                             .sync.policy = "none",
                             .optimizer = optimizer,
                             .batch = batch,
                             .total_steps = STEPS,
                             .masked_loss = true,
                             .sync.slot = &j->slot,
                             .sync.stall_timeout_ns = NS_PER_S,
                             .sync.inline_progress = true};
    batches_config batches = {.set = set,
                              .part = DATA_TRAIN,
                              .purpose = BATCHES_TRAIN,
                              .model = data_form_of_model(model),
                              .seed = 1,
                              .world = 1,
                              .batch = batch,
                              .threads = 1};
    *j = (job){.done = 0};
    must(trainer_open(&config, &j->trainer));
    must(batches_open(&batches, &j->source));
}

static void open_job(job *j, const char *device, simulation *s, int rank, const nn_model *model,
                     const dataset *set, const optimizer_options *optimizer, int64_t batch)
{
    open_slow_job(j, NULL, device, s, rank, model, set, optimizer, batch);
}

static void close_job(job *j)
{
    batch_source_close(&j->source);
    trainer_close(&j->trainer);
}

/* Runs the steps of a rank in a fiber. */
static status drive(void *context)
{
    job *j = context;
    while (j->done < STEPS) {
        TRY(trainer_step(j->trainer, j->source, j->done, j->done, &j->results[j->done]));
        j->done++;
    }
    return STATUS_OK;
}

static void drive_all(simulation *s, job *jobs, int count)
{
    for (int r = 0; r < count; r++) {
        sim_actor *host = sim_device_host(trainer_device(jobs[r].trainer));
        must(sim_fiber_open(host, drive, &jobs[r]));
        sim_actor_wake(host, 0);
    }
    must(simulation_run(s));
    must(simulation_check_finished(s));
    for (int r = 0; r < count; r++) sim_fiber_close(sim_device_host(trainer_device(jobs[r].trainer)));
}

static nn_model *build(const model_options *options)
{
    nn_model *model;
    must(model_build(options, &model));
    return model;
}

static simulation *open_simulation(const char *profile, int world)
{
    simulation *s;
    simulation_config config = {.profile = profile, .world = world};
    must(simulation_open(&config, &s));
    return s;
}

/* ---- the time of a step ----------------------------------------------------------------------- */

typedef struct sums {
    double forward_ns, backward_ns, update_ns;
    int launches;
} sums;

static double price_ns(const simulation *s, const op_desc *op)
{
    return sim_price_op(s->profile, SIM_FP32, op) / (double)SIM_NS;
}

static sums prices_of(const simulation *s, const job *j)
{
    const nn_program *p = trainer_program(j->trainer);
    sums all = {0};
    for (int i = 0; i < p->op_count; i++)
        *(i < p->loss_end ? &all.forward_ns : &all.backward_ns) += price_ns(s, &p->ops[i].desc);
    op_desc update = {
        .kind = OP_sgd, .type = DTYPE_F32, .u.optimizer = {.count = p->model->parameter_elements}};
    all.update_ns = price_ns(s, &update);
    all.launches = p->op_count + 1;
    return all;
}

static void check_ns(const char *what, double found, double expected, double tolerance)
{
    if (fabs(found - expected) > tolerance)
        fail_msg("%s: found %.0f ns, expected %.0f", what, found, expected);
}

/* Sets all times to 0 except the prices of operations. */
static void take_no_time_to_launch(simulation *s)
{
    static const sim_constant free_of_charge[] = {SIM_LAUNCH_TIME, SIM_KERNEL_OVERHEAD, SIM_SYNCHRONIZE_TIME,
                                                  SIM_COPY_LATENCY};
    for (int i = 0; i < 4; i++) bench_set(s, free_of_charge[i], 0);
}

/* If the host takes no time, a step takes the time to copy the batch, plus the prices of all operations. */
static void a_step_is_the_sum_of_its_prices(void **context)
{
    (void)context;
    nn_model *model = build(&(model_options){.name = "resnet18", .image = 64});
    dataset *set = open_data(model);
    optimizer_options optimizer = sgd(0);
    simulation *s = open_simulation("v100-pcie-32g", 1);
    take_no_time_to_launch(s);
    job j;
    open_job(&j, "sim", s, 0, model, set, &optimizer, 32);
    drive_all(s, &j, 1);
    sums expected = prices_of(s, &j);
    double load = (32.0 * 3 * 64 * 64 * 4 + 32 * 4) / 12; /* bytes of a batch over PCIe at 12 GB/s */
    for (int i = 0; i < STEPS; i++) {
        const step_times *t = &j.results[i].times;
        check_ns("load", (double)t->parts[STEP_DATA], load, 3);
        check_ns("forward", (double)t->parts[STEP_FORWARD], expected.forward_ns, 100);
        check_ns("backward", (double)t->parts[STEP_BACKWARD], expected.backward_ns, 100);
        check_ns("step", (double)(t->total - t->parts[STEP_OTHER]),
                 load + expected.forward_ns + expected.backward_ns + expected.update_ns, 200);
        assert_int_equal(t->parts[STEP_EXPOSED], 0);
    }
    assert_true(j.results[1].begin_ns >= j.results[0].end_ns);
    close_job(&j);
    simulation_close(&s);
    dataset_close(&set);
    nn_model_free(&model);
}

static int64_t bf16_weights_of(const nn_program *p)
{
    int64_t elements = 0;
    for (int i = 0; i < p->forward_end; i++)
        for (int s = 0; s < OP_MAX_OPERANDS; s++)
            if (p->ops[i].operands[s].space == NN_SPACE_BF16_COPY)
                elements += p->model->params[p->ops[i].operands[s].index].elements;
    return elements;
}

/* The first forward pass makes bfloat16 copies of the weights. Later the updates write these copies. */
static void copies_of_weights_in_bfloat16_have_their_price(void **context)
{
    (void)context;
    nn_model *model = build(&(model_options){.name = "resnet18", .image = 64});
    dataset *set = open_data(model);
    optimizer_options optimizer = sgd(0);
    simulation *s;
    must(simulation_open(&(simulation_config){.profile = "dgx-h100", .world = 1, .precision = SIM_BF16}, &s));
    take_no_time_to_launch(s);
    job j;
    open_job(&j, "sim", s, 0, model, set, &optimizer, 32);
    drive_all(s, &j, 1);
    const nn_program *p = trainer_program(j.trainer);
    op_desc copies = {
        .kind = OP_divide, .type = DTYPE_F32, .bf16 = true, .u.elementwise.count = bf16_weights_of(p)};
    op_desc update = {
        .kind = OP_sgd, .type = DTYPE_F32, .u.optimizer = {.count = model->parameter_elements, .bf16 = true}};
    double copy_ns = sim_price_op(s->profile, SIM_BF16, &copies) / (double)SIM_NS;
    double update_ns = sim_price_op(s->profile, SIM_BF16, &update) / (double)SIM_NS, forward_ns = 0;
    for (int i = 0; i < p->loss_end; i++)
        forward_ns += sim_price_op(s->profile, SIM_BF16, &p->ops[i].desc) / (double)SIM_NS;
    assert_true(p->config.bf16 && copy_ns > 1000);
    for (int i = 0; i < STEPS; i++) {
        check_ns("forward", (double)j.results[i].times.parts[STEP_FORWARD],
                 forward_ns + (i == 0 ? copy_ns : 0), 100);
        check_ns("update", (double)j.results[i].times.parts[STEP_OPTIMIZER], update_ns, 10);
    }
    close_job(&j);
    simulation_close(&s);
    dataset_close(&set);
    nn_model_free(&model);
}

/* If kernels take almost no time, a step takes as long as the launches of the host. */
static void small_operations_are_bound_by_launches(void **context)
{
    (void)context;
    nn_model *model = build(&(model_options){.name = "resnet18", .image = 32});
    dataset *set = open_data(model);
    optimizer_options optimizer = sgd(0);
    simulation *s = open_simulation("dgx-h100", 1);
    bench_set(s, SIM_LAUNCH_TIME, 1000);
    job j;
    open_job(&j, "sim", s, 0, model, set, &optimizer, 2);
    drive_all(s, &j, 1);
    int launches = prices_of(s, &j).launches + 2; /* and two copies of the batch */
    for (int i = 0; i < STEPS; i++) {
        double ms = (double)j.results[i].times.total / NS_PER_MS;
        if (ms < launches || ms > launches + 2)
            fail_msg("step %d: found %.3f ms for %d launches of 1 ms", i, ms, launches);
    }
    close_job(&j);
    simulation_close(&s);
    dataset_close(&set);
    nn_model_free(&model);
}

/* Eight ranks in one thread take the same time as a single rank, except that their batches arrive over shared
 * links. */
static void ranks_take_turns_and_share_the_links(void **context)
{
    (void)context;
    enum { RANKS = 8 };
    nn_model *model = build(&(model_options){.name = "resnet18", .image = 64});
    dataset *set = open_data(model);
    optimizer_options optimizer = sgd(0.9);
    int64_t load[2], forward[2], begin[2][RANKS];
    for (int round = 0; round < 2; round++) {
        int world = round ? RANKS : 1;
        simulation *s = open_simulation("v100-pcie-32g", world);
        bench_set(s, SIM_KAPPA, 1);
        bench_set(s, SIM_LAUNCH_TIME, 1); /* makes kernels the bottleneck */
        job jobs[RANKS];
        for (int r = 0; r < world; r++) open_job(&jobs[r], "sim", s, r, model, set, &optimizer, 16);
        drive_all(s, jobs, world);
        for (int r = 0; r < world; r++) {
            assert_int_equal(jobs[r].done, STEPS);
            begin[round][r] = jobs[r].results[STEPS - 1].begin_ns;
        }
        load[round] = jobs[0].results[0].times.parts[STEP_DATA];
        forward[round] = jobs[0].results[0].times.parts[STEP_FORWARD];
        for (int r = 0; r < world; r++) close_job(&jobs[r]);
        simulation_close(&s);
    }
    /* All ranks begin the step at the same time. */
    for (int r = 1; r < RANKS; r++) assert_int_equal(begin[1][r], begin[1][0]);
    /* A mark is rounded to 1 ns. */
    check_ns("forward next to others", (double)forward[1], (double)forward[0], 1);
    /* Two GPUs share the uplink of a switch, so the bytes take twice as long. The latencies stay. */
    double bytes_ns = 16.0 * 3 * 64 * 64 * 4 / 12;
    check_ns("load next to others", (double)load[1], (double)load[0] + bytes_ns, 20);
    dataset_close(&set);
    nn_model_free(&model);
}

static void the_same_run_takes_the_same_time(void **context)
{
    (void)context;
    nn_model *model = build(&(model_options){.name = "lenet"});
    dataset *set = open_data(model);
    optimizer_options optimizer = sgd(0.9);
    int64_t ends[2];
    for (int round = 0; round < 2; round++) {
        simulation *s = open_simulation(NULL, 1);
        s->config.jitter_seed = 7;
        job j;
        open_job(&j, "sim", s, 0, model, set, &optimizer, 8);
        drive_all(s, &j, 1);
        ends[round] = j.results[STEPS - 1].end_ns;
        close_job(&j);
        simulation_close(&s);
    }
    assert_int_equal(ends[0], ends[1]);
    dataset_close(&set);
    nn_model_free(&model);
}

static void a_launch_is_a_call_on_the_cpu_profile(void **context)
{
    (void)context;
    nn_model *model = build(&(model_options){.name = "lenet"});
    dataset *set = open_data(model);
    optimizer_options optimizer = sgd(0);
    simulation *s = open_simulation("cpu", 1);
    job j;
    open_job(&j, "sim", s, 0, model, set, &optimizer, 8);
    drive_all(s, &j, 1);
    sums expected = prices_of(s, &j);
    double each = 2200; /* launch time plus overhead, in ns */
    const step_times *t = &j.results[1].times;
    double operations =
        expected.forward_ns + expected.backward_ns + expected.update_ns + expected.launches * each;
    check_ns("step", (double)(t->total - t->parts[STEP_DATA] - t->parts[STEP_OTHER]), operations, 200);
    check_ns("optimizer", (double)t->parts[STEP_OPTIMIZER], expected.update_ns + each, 20);
    close_job(&j);
    simulation_close(&s);
    dataset_close(&set);
    nn_model_free(&model);
}

/* ---- a slow rank ------------------------------------------------------------------------------ */

/* A slow evaluation would take a thousand times as long as the processor needs. */
static void a_slow_rank_trains_slowly_and_evaluates_as_fast_as_others(void **context)
{
    (void)context;
    nn_model *model = build(&(model_options){.name = "lenet"});
    dataset *set = open_data(model);
    optimizer_options optimizer = sgd(0);
    job j;
    open_slow_job(&j, "0:1000", "cpu", NULL, 0, model, set, &optimizer, 1);
    assert_true(trainer_slowdown(j.trainer) == 1000);
    int64_t begin = clock_now_ns(), used = clock_cpu_ns(CLOCK_THREAD_CPUTIME_ID);
    evaluation_sums sums;
    must(trainer_evaluate(j.trainer, j.source, (evaluation_stop){0}, &sums));
    begin = clock_now_ns() - begin;
    used = clock_cpu_ns(CLOCK_THREAD_CPUTIME_ID) - used;
    if (begin > 100 * used)
        fail_msg("an evaluation took %d ms for %d ms of computation", (int)(begin / NS_PER_MS),
                 (int)(used / NS_PER_MS));
    begin = clock_now_ns(), used = clock_cpu_ns(CLOCK_THREAD_CPUTIME_ID);
    must(trainer_step(j.trainer, j.source, 0, 0, &j.results[0]));
    begin = clock_now_ns() - begin;
    used = clock_cpu_ns(CLOCK_THREAD_CPUTIME_ID) - used;
    if (begin < 10 * used)
        fail_msg("a step took %d ms for %d ms of computation", (int)(begin / NS_PER_MS),
                 (int)(used / NS_PER_MS));
    close_job(&j);
    dataset_close(&set);
    nn_model_free(&model);
}

/* ---- the ledger ------------------------------------------------------------------------------- */

static void check_classes(const char *model, const char *what, const int64_t *found, const int64_t *expected)
{
    for (int c = 0; c < LEDGER_CLASS_COUNT; c++)
        if (c != LEDGER_WORKSPACE && found[c] != expected[c])
            fail_msg("%s, %s, %s: found %lld bytes on sim, %lld on cpu", model, what,
                     ledger_class_name((ledger_class)c), (long long)found[c], (long long)expected[c]);
}

static void check_ledgers(const char *model, const ledger *sim, const ledger *cpu)
{
    int64_t found[3][LEDGER_CLASS_COUNT], expected[3][LEDGER_CLASS_COUNT];
    for (int c = 0; c < LEDGER_CLASS_COUNT; c++) {
        const ledger_account *s = &sim->classes[c], *p = &cpu->classes[c];
        found[0][c] = s->current, expected[0][c] = p->current;
        found[1][c] = s->peak, expected[1][c] = p->peak;
        found[2][c] = s->peak_phase, expected[2][c] = p->peak_phase;
    }
    check_classes(model, "now", found[0], expected[0]);
    check_classes(model, "peak", found[1], expected[1]);
    check_classes(model, "phase of the peak", found[2], expected[2]);
    check_classes(model, "at the peak of all", sim->peak_classes, cpu->peak_classes);
    for (int p = 0; p < LEDGER_PHASE_COUNT; p++) {
        check_classes(model, ledger_phase_name((ledger_phase)p), sim->phase_peak_classes[p],
                      cpu->phase_peak_classes[p]);
        check_classes(model, ledger_phase_name((ledger_phase)p), sim->phase_end_classes[p],
                      cpu->phase_end_classes[p]);
    }
}

static void the_ledger_is_that_of_the_cpu(void **context)
{
    (void)context;
    static const model_options models[] = {
        {.name = "toy"},
        {.name = "wine_mlp"},
        {.name = "lenet"},
        {.name = "resnet18", .image = 32},
        {.name = "resnet50", .image = 32},
        {.name = "vgg16", .image = 32, .classes = 10},
        {.name = "bert",
         .layers = 2,
         .hidden = 64,
         .heads = 4,
         .vocabulary = 500,
         .positions = 32,
         .sequence = 16},
        {.name = "bert",
         .layers = 1,
         .hidden = 64,
         .heads = 4,
         .vocabulary = 500,
         .positions = 32,
         .sequence = 16,
         .head = MODEL_HEAD_CLS,
         .classes = 3},
        {.name = "gpt2",
         .layers = 2,
         .hidden = 64,
         .heads = 4,
         .vocabulary = 500,
         .positions = 32,
         .sequence = 16},
    };
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        nn_model *model = build(&models[i]);
        dataset *set = open_data(model);
        optimizer_options optimizer = i % 2 ? optimizer_defaults(OPTIMIZER_ADAM) : sgd(0.9);
        simulation *s = open_simulation(NULL, 1);
        job sim, cpu;
        open_job(&sim, "sim", s, 0, model, set, &optimizer, 2);
        open_job(&cpu, "cpu", NULL, 0, model, set, &optimizer, 2);
        drive_all(s, &sim, 1);
        must(drive(&cpu));
        check_ledgers(models[i].name, trainer_ledger(sim.trainer), trainer_ledger(cpu.trainer));
        for (int step = 0; step < STEPS; step++) {
            assert_int_equal(sim.results[step].samples, cpu.results[step].samples);
            assert_int_equal(sim.results[step].targets, cpu.results[step].targets);
            assert_true(sim.results[step].loss == 0);
        }
        close_job(&sim);
        close_job(&cpu);
        simulation_close(&s);
        dataset_close(&set);
        nn_model_free(&model);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_is_the_sum_of_its_prices),
        cmocka_unit_test(copies_of_weights_in_bfloat16_have_their_price),
        cmocka_unit_test(small_operations_are_bound_by_launches),
        cmocka_unit_test(ranks_take_turns_and_share_the_links),
        cmocka_unit_test(the_same_run_takes_the_same_time),
        cmocka_unit_test(a_launch_is_a_call_on_the_cpu_profile),
        cmocka_unit_test(a_slow_rank_trains_slowly_and_evaluates_as_fast_as_others),
        cmocka_unit_test(the_ledger_is_that_of_the_cpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
