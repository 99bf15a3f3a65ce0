#include "common/nn/params.h"

#include "common/base/random.h"
#include "common/memory/plan.h"
#include "common/reduce/reduce.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

static const op_desc *forward_op_of(const nn_program *program, int param)
{
    const op_desc *found = NULL;
    for (int i = 0; i < program->forward_end; i++) {
        const nn_op *op = &program->ops[i];
        for (int s = 0; s < OP_MAX_OPERANDS; s++)
            if (op->desc.kind == OP_embedding_forward && op->operands[s].space == NN_SPACE_PARAM &&
                op->operands[s].index == param)
                /* An embedding looks up rows in PyTorch's order, so its table keeps this order. */
                return NULL;
        if (op->weight_param == param && !found) found = &op->desc;
    }
    return found;
}

static status choose_layouts(param_set *set, const nn_program *program)
{
    for (int i = 0; i < set->model->param_count; i++) {
        const nn_param *p = &set->model->params[i];
        const op_desc *op = forward_op_of(program, i);
        set->layouts[i] = (device_layout){.elements = p->elements, .plain = true};
        if (!op) continue;
        int slot = op->kind == OP_conv2d_forward ? (int)CONV_FWD_W : (int)LINEAR_FWD_W;
        TRY(device_choose_layout(set->device, op, slot, p->shape, &set->layouts[i]));
    }
    return STATUS_OK;
}

/* Appends a tensor to an arena that ends at *end, and aligns the tensor to a cache line. */
static piece append(int64_t *end, int64_t elements, int element_size)
{
    int64_t unit = PLAN_ALIGNMENT / element_size;
    piece p = {*end, elements};
    *end += (elements + unit - 1) / unit * unit;
    return p;
}

static status place_tensors(param_set *set, const nn_program *program, const param_shards_config *shards)
{
    const nn_model *m = set->model;
    int size = dtype_size(set->type);
    set->logical_bytes = m->parameter_elements * size;
    param_shards_config cut = *shards;
    cut.real = device_get_info(set->device)->real;
    if (shards->stage != PARAM_SHARD_NONE)
        TRY(param_shards_open(program, &cut, PLAN_ALIGNMENT / size, set->pieces, &set->arena_elements,
                              &set->shards));
    else
        for (int i = 0; i < m->param_count; i++)
            set->pieces[i] = append(&set->arena_elements, m->params[i].elements, size);
    for (int pass = 0; pass < PARAM_PASSES; pass++)
        set->placed[pass] = param_shards_place_params(shards) ? set->shards->gathered[pass] : set->pieces;
    set->grads_placed = param_shards_place_gradients(shards) ? set->shards->gradients : set->pieces;
    for (int i = 0; i < m->buffer_count; i++) {
        set->buffer_pieces[i] = append(&set->buffer_elements, m->buffers[i].elements, size);
        set->buffer_bytes += m->buffers[i].elements * size;
    }
    return STATUS_OK;
}

static status allocate(param_set *set, ledger_class class, device_memory_kind kind, size_t bytes,
                       device_memory *out)
{
    return bytes ? ledger_blame(class, device_allocate(set->device, kind, bytes, out)) : STATUS_OK;
}

static status allocate_arenas(param_set *set, const param_set_config *config)
{
    size_t size = (size_t)dtype_size(set->sent), type_size = (size_t)dtype_size(set->type),
           arena = (size_t)set->arena_elements * size;
    const param_shards *s = set->shards;
    if (param_set_is_mixed(set)) {
        TRY(allocate(set, LEDGER_OPTIMIZER, DEVICE_MEMORY_PRIVATE, (size_t)s->elements * type_size,
                     &set->masters));
        TRY(allocate(set, LEDGER_GATHERED, DEVICE_MEMORY_PRIVATE, (size_t)s->gathered_elements * type_size,
                     &set->f32_params));
        bool whole = !param_shards_place_gradients(&s->config), sums = s->config.accumulates && !whole;
        size_t grads = (size_t)(whole ? set->arena_elements : s->gradient_elements) * type_size;
        TRY(allocate(set, whole ? LEDGER_GRADIENTS : LEDGER_BUCKETS, DEVICE_MEMORY_PRIVATE, grads,
                     &set->f32_grads));
        TRY(allocate(set, LEDGER_GRADIENTS, DEVICE_MEMORY_PRIVATE, sums ? (size_t)s->elements * type_size : 0,
                     &set->f32_shards));
    }
    bool cut_params = param_set_sharding(set) == PARAM_SHARD_ALL,
         cut_grads = param_set_sharding(set) >= PARAM_SHARD_GRADIENTS;
    size_t shards = s ? (size_t)s->elements * size : 0,
           gathered = cut_params ? (size_t)s->gathered_elements * size : 0;
    size_t grads = cut_grads ? (size_t)s->gradient_elements * size : arena;
    TRY(allocate(set, LEDGER_PARAMETERS, config->param_kind, cut_params ? shards : arena, &set->params));
    TRY(allocate(set, LEDGER_GATHERED, config->param_kind, gathered, &set->gathered));
    TRY(allocate(set, LEDGER_GRADIENTS, config->grad_kind, cut_grads ? shards : 0, &set->grad_shards));
    return allocate(set, cut_grads ? LEDGER_BUCKETS : LEDGER_GRADIENTS, config->grad_kind,
                    config->gradients ? grads : 0, &set->grads);
}

status param_set_hold_whole(param_set *set)
{
    if (!param_set_gathers(set) || set->whole.bytes > 0) return STATUS_OK;
    size_t bytes = (size_t)set->arena_elements * (size_t)dtype_size(set->type);
    return allocate(set, LEDGER_GATHERED, DEVICE_MEMORY_PRIVATE, bytes, &set->whole);
}

void param_set_drop_whole(param_set *set)
{
    device_free(set->device, &set->whole);
}

status param_set_open(device *d, const nn_model *model, const nn_program *program,
                      const param_set_config *config, param_set **out)
{
    *out = NULL;
    param_set *set = calloc(1, sizeof *set);
    if (!set) return fail(STATUS_SYSTEM, "no memory for the parameters of model %s", model->name);
    set->model = model;
    set->device = d;
    set->type = program->config.type;
    set->sent = config->shards.mixed ? DTYPE_BF16 : set->type;
    set->pieces = calloc((size_t)model->param_count + 1, sizeof *set->pieces);
    set->layouts = calloc((size_t)model->param_count + 1, sizeof *set->layouts);
    set->buffer_pieces = calloc((size_t)model->buffer_count + 1, sizeof *set->buffer_pieces);
    status rc;
    if (!set->pieces || !set->layouts || !set->buffer_pieces) {
        rc = fail(STATUS_SYSTEM, "no memory for the parameters of model %s", model->name);
        goto failed;
    }
    TRY_GOTO(rc, choose_layouts(set, program), failed);
    TRY_GOTO(rc, place_tensors(set, program, &config->shards), failed);
    size_t buffers = (size_t)set->buffer_elements * (size_t)dtype_size(set->type);
    size_t copy = config->bf16_copy && program->config.bf16 && !config->shards.mixed
                      ? (size_t)set->arena_elements * (size_t)dtype_size(DTYPE_BF16)
                      : 0;
    TRY_GOTO(rc, allocate_arenas(set, config), failed);
    TRY_GOTO(rc, allocate(set, LEDGER_PARAMETERS, DEVICE_MEMORY_PRIVATE, copy, &set->bf16_copy), failed);
    TRY_GOTO(rc, allocate(set, LEDGER_PARAMETERS, config->buffer_kind, buffers, &set->buffers), failed);
    *out = set;
    return STATUS_OK;
failed:
    param_set_close(&set);
    return rc;
}

void param_set_close(param_set **pointer)
{
    param_set *set = *pointer;
    if (!set) return;
    device_memory *arenas[] = {&set->params,      &set->bf16_copy,  &set->grads,   &set->gathered,
                               &set->grad_shards, &set->whole,      &set->masters, &set->f32_params,
                               &set->f32_grads,   &set->f32_shards, &set->buffers};
    for (size_t i = 0; i < sizeof arenas / sizeof *arenas; i++) device_free(set->device, arenas[i]);
    param_shards_close(&set->shards);
    free(set->pieces);
    free(set->layouts);
    free(set->buffer_pieces);
    free(set);
    *pointer = NULL;
}

status param_set_refresh_bf16_copy(param_set *set, device_stream *s)
{
    if (!set->bf16_copy_kept || set->bf16_copy_current) return STATUS_OK;
    TRY(device_convert(s, set->bf16_copy.data, DTYPE_BF16, set->params.data, set->type, set->arena_elements,
                       1));
    set->bf16_copy_current = true;
    return STATUS_OK;
}

static void *at(const param_set *set, const void *arena, piece p)
{
    return (char *)arena + p.offset * dtype_size(set->type);
}

static status no_staging(int64_t bytes)
{
    return fail(STATUS_SYSTEM, "no memory for a copy of %lld bytes", (long long)bytes);
}

/* Converts a host tensor of `count` elements in PyTorch's order to the device's type and layout, and uploads
 * `part` of the result. */
static status import_part(param_set *set, device_stream *s, const device_layout *layout, dtype host_type,
                          const void *plain, int64_t count, piece part, void *to)
{
    if (!device_get_info(set->device)->real) return STATUS_OK;
    int64_t bytes = count * dtype_size(set->type);
    char *typed = malloc((size_t)bytes * 2);
    if (!typed) return no_staging(bytes);
    status rc = STATUS_OK;
    void *packed = typed;
    reduce_convert(set->type, typed, host_type, plain, count, 1);
    if (layout && !layout->plain) {
        packed = typed + bytes;
        TRY_GOTO(rc, device_layout_pack(set->device, layout, typed, packed), out);
    }
    TRY_GOTO(rc, device_upload(s, to, at(set, packed, part), set->type, set->type, part.count), out);
    rc = device_stream_synchronize(s);
out:
    free(typed);
    return rc;
}

/* Returns true if `arena` is an arena of shards. */
static bool is_cut(const param_set *set, const void *arena)
{
    param_sharding stage = param_set_sharding(set);
    if (stage == PARAM_SHARD_NONE || arena == set->whole.data) return false;
    if (arena == set->params.data) return param_set_gathers(set);
    return arena != set->grads.data;
}

/* Imports this rank's part of a parameter, which may be empty, into an arena of shards. */
static status import_shard(param_set *set, device_stream *s, void *arena, int param, dtype host_type,
                           const void *plain)
{
    const param_shards *h = set->shards;
    const param_unit *u = &h->units[h->unit_of[param]];
    piece p = set->pieces[param];
    for (int i = u->first; i < u->first + u->count; i++) {
        piece own = h->own[i];
        if (own.offset < p.offset || own.offset >= p.offset + p.count) continue;
        return import_part(set, s, &set->layouts[param], host_type, plain, p.count,
                           (piece){own.offset - p.offset, own.count}, at(set, arena, h->pieces[i]));
    }
    return STATUS_OK;
}

/* Copies a tensor from `from` to host memory in PyTorch's order. `s` is NULL if `from` is host memory. */
static status export_tensor(const param_set *set, device_stream *s, const device_layout *layout,
                            const void *from, dtype host_type, void *plain, int64_t count)
{
    if (!device_get_info(set->device)->real) {
        memset(plain, 0, (size_t)(count * dtype_size(host_type)));
        return STATUS_OK;
    }
    int64_t bytes = count * dtype_size(set->type);
    char *packed = malloc((size_t)bytes * 2);
    if (!packed) return no_staging(bytes);
    status rc = STATUS_OK;
    void *typed = packed;
    if (s) {
        TRY_GOTO(rc, device_download(s, packed, from, set->type, set->type, count), out);
        TRY_GOTO(rc, device_stream_synchronize(s), out);
    } else {
        memcpy(packed, from, (size_t)bytes);
    }
    if (layout && !layout->plain) {
        typed = packed + bytes;
        TRY_GOTO(rc, device_layout_unpack(set->device, layout, packed, typed), out);
    }
    reduce_convert(host_type, plain, set->type, typed, count, 1);
out:
    free(packed);
    return rc;
}

status param_set_import(param_set *set, device_stream *s, void *arena, int param, dtype host_type,
                        const void *plain)
{
    piece p = set->pieces[param];
    if (arena == set->params.data) param_set_forget_bf16_copy(set);
    if (arena == set->params.data && param_set_is_mixed(set)) arena = set->masters.data;
    if (is_cut(set, arena)) return import_shard(set, s, arena, param, host_type, plain);
    return import_part(set, s, &set->layouts[param], host_type, plain, p.count, (piece){0, p.count},
                       at(set, arena, p));
}

status param_set_export(const param_set *set, device_stream *s, const void *arena, int param, dtype host_type,
                        void *plain)
{
    piece p = set->pieces[param];
    if (arena == set->params.data) arena = param_set_values(set);
    if (!arena) return fail(STATUS_INTERNAL, "parameters are exported while they are cut");
    return export_tensor(set, s, &set->layouts[param], at(set, arena, p), host_type, plain, p.count);
}

status param_set_import_buffer(param_set *set, device_stream *s, int buffer, dtype host_type,
                               const void *plain)
{
    piece p = set->buffer_pieces[buffer];
    return import_part(set, s, NULL, host_type, plain, p.count, (piece){0, p.count},
                       at(set, set->buffers.data, p));
}

status param_set_export_buffer(const param_set *set, device_stream *s, int buffer, dtype host_type,
                               void *plain)
{
    piece p = set->buffer_pieces[buffer];
    return export_tensor(set, s, NULL, at(set, set->buffers.data, p), host_type, plain, p.count);
}

/* Draws initial values. Each value depends only on its index, so the values do not depend on the number of
 * threads. */
static void draw(const nn_init *init, uint64_t start, float *out, int64_t count)
{
    const int64_t many = 1 << 22;
#pragma omp parallel for num_threads(omp_get_num_procs()) if (count >= many)
    for (int64_t i = 0; i < count; i++) {
        double value = init->a;
        if (init->kind == NN_INIT_UNIFORM)
            value *= random_signed(start, (uint64_t)i);
        else if (init->kind == NN_INIT_NORMAL)
            value *= random_normal(start, (uint64_t)i);
        out[i] = (float)value;
    }
}

static int64_t largest_tensor(const nn_model *m)
{
    int64_t most = 1;
    for (int i = 0; i < m->param_count; i++)
        if (m->params[i].elements > most) most = m->params[i].elements;
    for (int i = 0; i < m->buffer_count; i++)
        if (m->buffers[i].elements > most) most = m->buffers[i].elements;
    return most;
}

status param_set_initialize(param_set *set, device_stream *s, uint64_t seed)
{
    const nn_model *m = set->model;
    if (!device_get_info(set->device)->real) return STATUS_OK;
    float *values = malloc((size_t)largest_tensor(m) * sizeof *values);
    if (!values) return no_staging(largest_tensor(m) * 4);
    status rc = STATUS_OK;
    for (int i = 0; i < m->param_count && rc == STATUS_OK; i++) {
        const nn_param *p = &m->params[i];
        draw(&p->init, random_start(seed, random_fnv1a64(p->name)), values, p->elements);
        rc = param_set_import(set, s, set->params.data, i, DTYPE_F32, values);
    }
    for (int i = 0; i < m->buffer_count && rc == STATUS_OK; i++) {
        for (int64_t j = 0; j < m->buffers[i].elements; j++) values[j] = (float)m->buffers[i].initial;
        rc = param_set_import_buffer(set, s, i, DTYPE_F32, values);
    }
    free(values);
    return rc;
}

status param_set_hash(const param_set *set, device_stream *s, uint64_t *out)
{
    const nn_model *m = set->model;
    float *values = malloc((size_t)largest_tensor(m) * sizeof *values);
    XXH3_state_t *state = XXH3_createState();
    status rc = values && state ? STATUS_OK : no_staging(largest_tensor(m) * 4);
    if (rc == STATUS_OK) XXH3_64bits_reset(state);
    for (int i = 0; i < m->param_count && rc == STATUS_OK; i++) {
        rc = param_set_export(set, s, set->params.data, i, DTYPE_F32, values);
        if (rc == STATUS_OK)
            XXH3_64bits_update(state, values, (size_t)m->params[i].elements * sizeof *values);
    }
    if (rc == STATUS_OK) *out = XXH3_64bits_digest(state);
    XXH3_freeState(state);
    free(values);
    return rc;
}
