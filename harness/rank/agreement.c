#include "harness/rank/agreement.h"

#include "ring/ring.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static piece *pieces_of(const agreement_head *h)
{
    return (piece *)(h + 1);
}

static float *averages_of(const agreement_head *h)
{
    return (float *)(pieces_of(h) + h->params);
}

static float *magnitudes_of(const agreement_head *h)
{
    return averages_of(h) + h->arena_elements;
}

static size_t bytes_of(int64_t params, int64_t arena_elements)
{
    return sizeof(agreement_head) + (size_t)params * sizeof(piece) +
           2 * (size_t)arena_elements * sizeof(float);
}

/* ---- a rank ------------------------------------------------------------------------------------ */

status agreement_open(agreement *a, int fd, const run_config *config, trainer *t)
{
    *a = (agreement){0};
    if (fd == 0 || config->run.mode != ENGINE_BOTH || trainer_engine(t)->context.world < 2) return STATUS_OK;
    /* The copy of the gradients would disturb a step that is measured, or recorded as a CUDA graph. */
    if (config->run.warmup == 0 || config->run.cuda_graph) return STATUS_OK;
    a->own = calloc((size_t)trainer_params(t)->arena_elements + 1, sizeof *a->own);
    if (!a->own) return fail(STATUS_SYSTEM, "no memory to compare the engines' gradients");
    a->fd = fd;
    trainer_keep_gradients(t, a->own);
    return STATUS_OK;
}

void agreement_close(agreement *a)
{
    free(a->own);
    *a = (agreement){0};
}

/* Locks or unlocks the file, so that one rank writes at a time. */
static void lock(int fd, short type)
{
    struct flock whole = {.l_type = type, .l_whence = SEEK_SET};
    while (fcntl(fd, F_SETLKW, &whole) != 0 && type == F_WRLCK) continue;
}

/* Writes the averages that this rank holds. If every rank holds all averages, only rank 0 writes them. */
static status write_averages(agreement_head *h, trainer *t)
{
    const sync_engine *e = trainer_engine(t);
    const param_set *set = trainer_params(t);
    piece_list owned = {0};
    const char *arena = sync_reduced_gradients(trainer_engine(t), &owned);
    int64_t all = piece_list_elements(param_set_pieces(set, 0, set->model->param_count));
    if (!arena || (e->context.rank > 0 && piece_list_elements(owned) == all)) return STATUS_OK;
    for (int i = 0; i < owned.count; i++) {
        piece p = owned.pieces[i];
        TRY(device_download(trainer_stream(t), averages_of(h) + p.offset,
                            arena + p.offset * dtype_size(set->type), set->type, DTYPE_F32, p.count));
    }
    h->averaged += piece_list_elements(owned);
    return device_stream_synchronize(trainer_stream(t));
}

static status write_all(const agreement *a, agreement_head *h, trainer *t)
{
    const param_set *set = trainer_params(t);
    const sync_engine *e = trainer_engine(t);
    h->params = set->model->param_count;
    h->arena_elements = set->arena_elements;
    const ring_settings *ring = e->type == &sync_ring ? ring_get_settings(e) : NULL;
    const char *reason =
        ring && ring->options.hook != RING_HOOK_NONE ? "--comm-hook changes the gradients that the ring sums"
        : ring && ring->options.join != RING_JOIN_NONE ? "--join averages gradients differently"
                                                       : "";
    snprintf(h->reason, sizeof h->reason, "%s", reason);
    memcpy(pieces_of(h), set->pieces, (size_t)h->params * sizeof(piece));
    TRY(write_averages(h, t));
    if (e->type != &sync_ring) return STATUS_OK;
    float *sums = magnitudes_of(h);
    for (int64_t i = 0; i < h->arena_elements; i++) sums[i] += fabsf(a->own[i]);
    h->ranks++;
    return STATUS_OK;
}

status agreement_write(agreement *a, trainer *t)
{
    if (a->fd == 0) return STATUS_OK;
    const param_set *set = trainer_params(t);
    size_t bytes = bytes_of(set->model->param_count, set->arena_elements);
    trainer_keep_gradients(t, NULL);
    trainer_begin_anew(t); /* the work below belongs to no step */
    TRY(sync_flush(trainer_engine(t)));
    lock(a->fd, F_WRLCK);
    agreement_head *h = ftruncate(a->fd, (off_t)bytes) == 0
                            ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, a->fd, 0)
                            : MAP_FAILED;
    status rc = h == MAP_FAILED ? fail_errno(STATUS_SYSTEM, "no memory to compare the engines' gradients")
                                : write_all(a, h, t);
    if (h != MAP_FAILED) munmap(h, bytes);
    lock(a->fd, F_UNLCK);
    agreement_close(a);
    return rc;
}

/* ---- the launcher ------------------------------------------------------------------------------ */

static const agreement_head *head_of(sync_blob f)
{
    const agreement_head *h = f.data;
    return h && f.bytes >= sizeof *h && f.bytes >= bytes_of(h->params, h->arena_elements) ? h : NULL;
}

/* Returns the reason why the gradients cannot be compared, or NULL if they can be compared. */
static const char *missing(const agreement_head *ps, const agreement_head *ring, const nn_model *model,
                           int ranks)
{
    if (!ps || !ring)
        return "the first step is measured (--warmup 0), recorded (--cuda-graph) or was not reached";
    if (ps->reason[0]) return ps->reason;
    if (ring->reason[0]) return ring->reason;
    if (ps->averaged != model->parameter_elements || ring->averaged != model->parameter_elements)
        return "the policy keeps no averages of gradients on the ranks";
    if (ps->arena_elements != ring->arena_elements || ring->ranks != ranks)
        return "the engines' arenas differ";
    return NULL;
}

json_t *agreement_compare(sync_blob ps_file, sync_blob ring_file, const nn_model *model, int ranks,
                          const char *unlike)
{
    const agreement_head *ps = head_of(ps_file), *ring = head_of(ring_file);
    const char *reason = missing(ps, ring, model, ranks);
    if (!reason) reason = unlike;
    if (reason) return json_pack("{s:b, s:s}", "compared", 0, "reason", reason);
    bool power_of_two = (ranks & (ranks - 1)) == 0;
    const char *bound_text = power_of_two ? "2 (n - 1) 2^-24 sum|g| / n" : "2 n 2^-24 sum|g| / n";
    double factor = 2.0 * (power_of_two ? ranks - 1 : ranks) * 0x1p-24 / ranks, share = 0, largest = 0;
    int at = 0;
    for (int p = 0; p < model->param_count; p++)
        for (int64_t i = pieces_of(ring)[p].offset; i < pieces_of(ring)[p].offset + pieces_of(ring)[p].count;
             i++) {
            double difference = fabs((double)averages_of(ps)[i] - (double)averages_of(ring)[i]);
            if (difference == 0) continue;
            double bound = factor * (double)magnitudes_of(ring)[i];
            double of_bound = bound > 0 && isfinite(difference) ? difference / bound : INFINITY;
            if (of_bound > share) at = p;
            share = fmax(share, of_bound);
            largest = fmax(largest, isfinite(difference) ? difference : INFINITY);
        }
    json_t *finite = isfinite(share) ? json_real(share) : json_null();
    return json_pack("{s:b, s:n, s:b, s:s, s:b, s:o, s:o, s:s}", "compared", 1, "reason", "bit_identical",
                     (int)(share == 0), "bound", bound_text, "within_bound", (int)(share <= 1),
                     "largest_share_of_bound", finite, "largest_difference",
                     isfinite(largest) ? json_real(largest) : json_null(), "largest_share_in",
                     share > 0 ? model->params[at].name : "");
}
