/* Measures copies between GPUs and NCCL's all-reduce, with one thread per GPU. */
#include "harness/sim/calibrate_impl.h"

#include "common/base/clock.h"
#include "common/base/random.h"
#include "common/collectives/collective.h"
#include "common/collectives/nccl/collective_nccl.h"
#include "harness/train/local_ranks.h"

enum { SMALL = 2, LARGE_ON_GPU = 64 << 20, LARGE_ON_EMULATOR = 1 << 14 };

typedef struct together {
    gpu_calibration *result;
    int64_t elements; /* Number of float32 values in a large transfer. */
    uint64_t token;
    bool nccl;
    char bootstrap[COLLECTIVE_BOOTSTRAP_BYTES];
} together;

typedef struct gpu_rank {
    device *device;
    device_stream *stream;
    device_memory memory, landing;
    collective_world *world;
    collective_group *group;
} gpu_rank;

/* ---- copies ----------------------------------------------------------------------------------- */

/* Copies from each other GPU to GPU 0 and keeps the slowest pair. */
static status copy_from_peers(together *t, gpu_rank *g, const sync_blob *ranks)
{
    gpu_calibration *c = t->result;
    double bytes = (double)t->elements * sizeof(float);
    for (int r = 1; r < c->gpus; r++) {
        const gpu_rank *peer = ranks[r].data;
        int64_t large = 0, small = 0;
        TRY(device_enable_peer(g->device, peer->device));
        TRY(gpu_time_copy(g->stream, g->landing.data, peer->memory.data, t->elements, &large));
        TRY(gpu_time_copy(g->stream, g->landing.data, peer->memory.data, SMALL, &small));
        double gbs = large > 0 ? bytes / (double)large : 0, us = (double)small * 1e-3;
        if (c->peer_gbs == 0 || gbs < c->peer_gbs) c->peer_gbs = gbs;
        if (us > c->peer_us) c->peer_us = us;
    }
    return STATUS_OK;
}

/* ---- NCCL ------------------------------------------------------------------------------------- */

static status open_nccl(together *t, int rank, gpu_rank *g)
{
    int all[GPU_MOST], gpus = t->result->gpus;
    for (int r = 0; r < gpus; r++) all[r] = r;
    collective_config config = {.rank = rank,
                                .world = gpus,
                                .job_token = t->token,
                                .name = "calibrate",
                                .device = g->device,
                                .bootstrap = t->bootstrap,
                                .stall_timeout_ns = 60 * NS_PER_S,
                                .connect_timeout_ns = 60 * NS_PER_S};
    TRY(collective_open("nccl", &config, &g->world));
    return collective_group_open(g->world, "data", all, gpus, &g->group);
}

static status time_all_reduce(gpu_rank *g, int64_t count, int64_t *best)
{
    collective_call call = collective_in_place(COLLECTIVE_ALL_REDUCE, DTYPE_F32, count, g->memory.data);
    for (int i = 0; i < GPU_TURNS; i++) {
        collective_ticket ticket;
        int64_t deadline;
        bool worked;
        TRY(collective_enqueue(g->group, &call, g->stream, &ticket));
        TRY(device_stream_synchronize(g->stream));
        TRY(collective_progress(g->world, clock_now_ns(), &deadline, &worked));
        collective_times times = collective_get_times(g->group, ticket);
        keep_least(best, times.finished_ns - times.started_ns);
    }
    return STATUS_OK;
}

/* Measures the bus bandwidth as nccl-tests defines it. */
static status all_reduce(together *t, int rank, gpu_rank *g)
{
    gpu_calibration *c = t->result;
    int64_t large = 0, small = 0;
    TRY(open_nccl(t, rank, g));
    TRY(time_all_reduce(g, t->elements, &large));
    TRY(time_all_reduce(g, SMALL, &small));
    if (rank != 0 || large == 0) return STATUS_OK;
    c->all_reduce_gbs = (double)t->elements * sizeof(float) / (double)large * 2 * (c->gpus - 1) / c->gpus;
    c->all_reduce_us = (double)small * 1e-3;
    return STATUS_OK;
}

/* ---- ranks ------------------------------------------------------------------------------------ */

static status measure(local_ranks *group, int rank, together *t, gpu_rank *g)
{
    device_config config = {
        .name = "cuda", .rank = rank, .world = t->result->gpus, .local_rank = rank, .threads = 1};
    size_t bytes = (size_t)t->elements * sizeof(float);
    const sync_blob *ranks;
    TRY(device_open(&config, &g->device));
    TRY(device_stream_open(g->device, DEVICE_STREAM_COMMUNICATION, &g->stream));
    TRY(device_allocate(g->device, DEVICE_MEMORY_SHARED, bytes, &g->memory));
    TRY(device_allocate(g->device, DEVICE_MEMORY_PRIVATE, bytes, &g->landing));
    TRY(local_ranks_exchange(group, rank, (sync_blob){g, sizeof *g}, &ranks));
    if (rank == 0) TRY(copy_from_peers(t, g, ranks));
    TRY(local_ranks_barrier(group));
    if (t->nccl) TRY(all_reduce(t, rank, g));
    return local_ranks_barrier(group); /* A peer may still use this rank's memory. */
}

static status run(local_ranks *group, int rank, void *context)
{
    gpu_rank g = {0};
    status rc = measure(group, rank, context, &g);
    collective_group_close(&g.group);
    collective_close(&g.world);
    device_free(g.device, &g.memory);
    device_free(g.device, &g.landing);
    device_stream_close(&g.stream);
    device_close(&g.device);
    return rc;
}

status calibrate_gpu_peers(gpu_calibration *c)
{
    if (c->gpus < 2) return STATUS_OK;
    together t = {
        .result = c, .elements = c->emulated ? LARGE_ON_EMULATOR : LARGE_ON_GPU, .token = random_token()};
    char text[192];
    t.nccl = collective_nccl_found(text, sizeof text);
    if (t.nccl) TRY(collective_nccl_bootstrap(t.bootstrap));
    return local_ranks_run(c->gpus, run, &t);
}
