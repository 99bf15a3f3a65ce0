/* bench_sim [MODEL [RANKS [STEPS]]]: measures what a simulation costs. Ranks train MODEL with engine `none`
 * on virtual devices, in one thread. Then a launch, an event and a flow are measured separately. Prints
 * wall-clock times. */
#include "common/base/clock.h"
#include "common/device/sim/device_sim.h"
#include "common/sim/nccl.h"
#include "harness/train/trainer.h"
#include "models/models.h"
#include "tests/common/sim/ring_steps.h"
#include "tests/support/status_name.h"

#include <stdio.h>
#include <stdlib.h>

static status must(status rc)
{
    if (rc == STATUS_OK) return rc;
    fprintf(stderr, "bench_sim: %s: %s\n", status_name(rc), error_message());
    exit(status_exit_code(rc));
}

static void *need(void *memory)
{
    if (memory) return memory;
    fprintf(stderr, "bench_sim: no memory\n");
    exit(1);
}

static double seconds_since(int64_t begin)
{
    return (double)(clock_now_ns() - begin) / NS_PER_S;
}

/* ---- batches without content ------------------------------------------------------------------ */

typedef struct blank_source {
    batch_source base;
    batch_view view;
} blank_source;

static status next_blank(batch_source *s, int64_t step, batch_view *out)
{
    *out = ((blank_source *)s)->view;
    out->step = step;
    return STATUS_OK;
}

static void return_blank(batch_source *s, const batch_view *b)
{
    (void)s;
    (void)b;
}

static void close_blank(batch_source *s)
{
    (void)s;
}

static const batch_source_type blank_type = {next_blank, batch_source_always_ready, return_blank,
                                             close_blank};

/* Opens a source that gives the same batch to all ranks. */
static blank_source open_blank(const nn_model *m, int64_t batch)
{
    int64_t targets = batch * m->rows_per_sample * (m->loss == NN_LOSS_MSE ? m->classes : 1);
    return (blank_source){.base = {.type = &blank_type, .largest_batch = batch},
                          .view = {.targets = need(calloc((size_t)targets, sizeof(int32_t))),
                                   .count = batch,
                                   .targets_counted = targets}};
}

/* ---- training --------------------------------------------------------------------------------- */

typedef struct rank_job {
    trainer *trainer;
    rank_slot slot;
    blank_source *source;
    int steps, done;
    int64_t step_ns;
} rank_job;

static status drive(void *context)
{
    rank_job *j = context;
    for (step_result result; j->done < j->steps; j->done++) {
        TRY(trainer_step(j->trainer, &j->source->base, j->done, j->done, &result));
        j->step_ns = result.times.total;
    }
    return STATUS_OK;
}

static simulation *open_simulation(const char *profile, int world)
{
    simulation *s;
    simulation_config config = {.profile = profile, .world = world, .unlimited_memory = true};
    must(simulation_open(&config, &s));
    return s;
}

static void train(const char *name, int world, int steps)
{
    enum { BATCH = 64 };
    nn_model *model;
    must(model_build(&(model_options){.name = name}, &model));
    optimizer_options optimizer = optimizer_defaults(OPTIMIZER_SGD);
    simulation *s = open_simulation("dgx-a100-80g", world);
    blank_source source = open_blank(model, BATCH);
    rank_job *jobs = need(calloc((size_t)world, sizeof *jobs));
    int64_t resident = ledger_measure_process().resident, begin = clock_now_ns();
    for (int r = 0; r < world; r++) {
        trainer_config config = {.sync.rank = r,
                                 .sync.world = 1,
                                 .device = "sim",
                                 .threads = 1,
                                 .simulation = s,
                                 .model = model,
                                 .engine = &sync_none,
                                 .sync.policy = "none",
                                 .optimizer = &optimizer,
                                 .batch = BATCH,
                                 .total_steps = steps,
                                 .masked_loss = true,
                                 .sync.slot = &jobs[r].slot,
                                 .sync.inline_progress = true};
        must(trainer_open(&config, &jobs[r].trainer));
        jobs[r].source = &source;
        jobs[r].steps = steps;
        sim_actor *host = sim_device_host(trainer_device(jobs[r].trainer));
        sim_actor_set_run(host, drive, &jobs[r]);
        sim_actor_wake(host, 0);
    }
    double opened = seconds_since(begin);
    begin = clock_now_ns();
    must(simulation_run(s));
    must(simulation_check_finished(s));
    double ran = seconds_since(begin);
    int launches = trainer_program(jobs[0].trainer)->op_count + 1;
    double kib = (double)(ledger_measure_process().resident - resident) / 1024 / world;
    printf("%s, %d ranks, %d steps of %.3f virtual ms, %d launches per step\n", name, world, steps,
           (double)jobs[0].step_ns / NS_PER_MS, launches);
    printf("  open      %8.2f ms per rank, %.0f KiB per rank\n", opened * 1e3 / world, kib);
    printf("  run       %8.2f s: %.2f us per rank and step, %.0f ns per launch, %lld events\n", ran,
           ran * 1e6 / world / steps, ran * 1e9 / world / steps / launches, (long long)s->queue.fired);
    for (int r = 0; r < world; r++) trainer_close(&jobs[r].trainer);
    free(jobs);
    free((void *)source.view.targets);
    simulation_close(&s);
    nn_model_free(&model);
}

/* ---- parts alone ------------------------------------------------------------------------------ */

static void launch_alone(void)
{
    enum { LAUNCHES = 500, ROUNDS = 4000 };
    simulation *s = open_simulation(NULL, 1);
    device_config config = {.name = "sim", .world = 1, .threads = 1, .simulation = s};
    device *d;
    device_stream *stream;
    device_kernel *kernel;
    op_desc op = {.kind = OP_add, .type = DTYPE_F32, .u.elementwise = {.count = 1 << 20}};
    must(device_open(&config, &d));
    must(device_stream_open(d, DEVICE_STREAM_COMPUTE, &stream));
    must(device_prepare(d, &op, NULL, &kernel));
    int64_t begin = clock_now_ns();
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < LAUNCHES; i++) must(device_launch(stream, kernel, NULL, NULL, NULL));
        while (device_stream_synchronize(stream) == STATUS_AGAIN)
            must(simulation_run_until_woken(s, sim_device_host(d)));
    }
    printf("launch      %8.1f ns\n", seconds_since(begin) * 1e9 / LAUNCHES / ROUNDS);
    device_stream_close(&stream);
    device_close(&d);
    simulation_close(&s);
}

static void stop(void *context)
{
    *(bool *)context = true;
}

static sim_rings *open_rings(simulation *s, int world)
{
    sim_place *gpus = need(calloc((size_t)world, sizeof *gpus));
    sim_rings *rings;
    for (int r = 0; r < world; r++) gpus[r] = simulation_gpu(s, r);
    must(sim_rings_open(s->topology, gpus, world, &rings));
    free(gpus);
    return rings;
}

/* Simulates a ring as one flow over all its links, and step by step. */
static void ring_as_flow(int world)
{
    enum { ROUNDS = 100 };
    simulation *s = open_simulation("dgx-a100-80g", world);
    int64_t begin = clock_now_ns();
    sim_rings *rings = open_rings(s, world);
    double opened = seconds_since(begin);
    bool done = false;
    sim_flow flow;
    must(sim_flow_init(&s->network, &flow, 0, rings->use_count, NULL, stop, &done));
    begin = clock_now_ns();
    for (int i = 0; i < ROUNDS; i++, done = false) {
        sim_flow_start(&flow, 0, rings->uses, rings->use_count, 1e8, INFINITY, 0);
        while (!done) sim_queue_step(&s->queue);
    }
    printf("ring of %4d as one flow over %d links: %.1f us (plan: %.1f ms)\n", world, rings->use_count,
           seconds_since(begin) * 1e6 / ROUNDS, opened * 1e3);
    sim_flow_deinit(&flow);
    sim_rings_close(&rings);
    simulation_close(&s);
}

static void ring_in_steps(int world)
{
    simulation *s = open_simulation("v100-pcie-10gbe", world);
    sim_rings *rings = open_rings(s, world);
    sim_ring_steps *steps;
    bool done = false;
    must(sim_ring_steps_open(&s->network, rings, SIM_SIMPLE, stop, &done, &steps));
    int64_t begin = clock_now_ns();
    must(sim_ring_steps_start(steps, 1e8));
    while (!done) sim_queue_step(&s->queue);
    double ran = seconds_since(begin);
    printf("ring of %4d in steps: %.2f s, %lld events, %.0f ns an event\n", world, ran,
           (long long)s->queue.fired, ran * 1e9 / (double)s->queue.fired);
    sim_ring_steps_close(&steps);
    sim_rings_close(&rings);
    simulation_close(&s);
}

/* Sends from each of n members to every other at the same time. The sizes differ, so the end of each flow
 * changes all rates. */
static void all_to_all(int n)
{
    simulation *s = open_simulation("v100-pcie-10gbe", n);
    sim_flow *flows = need(calloc((size_t)n * (size_t)n, sizeof *flows));
    bool done = false;
    int64_t begin = clock_now_ns();
    for (int a = 0; a < n; a++)
        for (int b = 0; b < n; b++) {
            sim_route route;
            sim_flow *f = &flows[a * n + b];
            if (a == b) continue;
            sim_topology_route(s->topology, simulation_host(s, a), simulation_host(s, b), &route);
            must(sim_flow_init(&s->network, f, a, route.count, NULL, stop, &done));
            sim_flow_start(f, 0, route.hops, route.count, 1e6 + 1000 * ((a * 31 + b * 17) % n), INFINITY, 0);
        }
    while (sim_queue_step(&s->queue)) {
    }
    double ran = seconds_since(begin);
    printf("%d flows, all to all: %.2f s, %.1f us a flow, %.0f rates solved a flow\n", n * (n - 1), ran,
           ran * 1e6 / n / (n - 1), (double)s->network.solved / n / (n - 1));
    for (int i = 0; i < n * n; i++) sim_flow_deinit(&flows[i]);
    free(flows);
    simulation_close(&s);
}

int main(int argc, char **argv)
{
    const char *model = argc > 1 ? argv[1] : "resnet50";
    int ranks = argc > 2 ? atoi(argv[2]) : 64, steps = argc > 3 ? atoi(argv[3]) : 10;
    launch_alone();
    train(model, ranks, steps);
    ring_as_flow(64);
    ring_as_flow(1024);
    ring_in_steps(256);
    all_to_all(64);
    return 0;
}
