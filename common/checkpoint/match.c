/* Matches the tensors of a file to the model. Files that other programs wrote may differ from files of this
 * program. Files of other programs may
 *
 *   - lack num_batches_tracked (PyTorch before 0.4.1)
 *   - hold a tied tensor under the name of the other layer that uses it (lm_head.weight), instead of its
 *     usual name (safetensors.torch.save_model keeps one of the names) or in addition to it (state_dict())
 *   - hold constants that Hugging Face's models register as buffers and ignore when they load
 *   - hold the auxiliary classifier of torchvision's Inception, which is not built here
 *   - hold the matrices of Hugging Face's GPT-2 as [in, out], the layout of Conv1D */
#include "common/checkpoint/checkpoint_impl.h"

#include "common/base/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_NAMED = 4 }; /* largest number of missing or unexpected tensors that a message names */

typedef struct matcher {
    const safetensors_header *header;
    const match_request *request;
    match *out;
    bool *used; /* [header->count] */
} matcher;

static bool ends_with_any(const char *text, const char *const *ends)
{
    for (; *ends; ends++)
        if (text_ends_with(text, *ends)) return true;
    return false;
}

bool match_is_conv1d(const char *name)
{
    static const char *const matrices[] = {".c_attn.weight", ".c_fc.weight", ".c_proj.weight", NULL};
    return ends_with_any(name, matrices);
}

bool match_is_floating(dtype type)
{
    return type == DTYPE_F64 || type == DTYPE_F32 || type == DTYPE_F16 || type == DTYPE_BF16;
}

static bool is_ignored(const char *name)
{
    static const char *const constants[] = {".attn.bias", ".attn.masked_bias", ".position_ids", NULL};
    return ends_with_any(name, constants) || strncmp(name, "AuxLogits.", 10) == 0;
}

/* ---- names ------------------------------------------------------------------------------------ */

static const safetensors_tensor *use(matcher *m, const char *name)
{
    const safetensors_tensor *t = safetensors_find(m->header, name);
    if (t) m->used[t - m->header->tensors] = true;
    return t;
}

/* Finds tensors of the file that have the name of layer `l`, "LAYER.weight" or "LAYER.bias", and belong to
 * parameters that layer `l` shares with another layer. */
static void find_tied(matcher *m, const nn_layer *l)
{
    static const char *const slots[] = {"weight", "bias"};
    const nn_model *model = m->request->model;
    if (l->kind != NN_LINEAR) return;
    for (int s = 0; s < 2; s++) {
        char name[CHECKPOINT_NAME_MAX];
        snprintf(name, sizeof name, "%s.%s", l->name, slots[s]);
        if (l->param[s] == NN_NONE || strcmp(name, model->params[l->param[s]].name) == 0) continue;
        const safetensors_tensor *t = use(m, name);
        for (int i = 0; t && i < m->request->contents->count; i++) {
            const checkpoint_tensor *wanted = &m->request->contents->tensors[i];
            const safetensors_tensor **found = &m->out->found[i];
            if (wanted->kind != CHECKPOINT_PARAM || wanted->index != l->param[s]) continue;
            if (*found)
                m->out->tied[m->out->tied_count++] = (match_tied){*found, t};
            else
                *found = t;
        }
    }
}

static void find_all(matcher *m)
{
    const match_request *r = m->request;
    const safetensors_header *h = m->header;
    for (int i = 0; i < r->contents->count; i++) m->out->found[i] = use(m, r->contents->tensors[i].name);
    for (int i = 0; r->foreign && i < r->model->layer_count; i++) find_tied(m, &r->model->layers[i]);
    for (int i = 0; i < h->count; i++) {
        const char *name = h->tensors[i].name;
        if (r->foreign && is_ignored(name)) m->used[i] = true;
        if (r->skips_state && strncmp(name, "optimizer.", 10) == 0) m->used[i] = true;
    }
}

static void add_name(text_buffer *to, int *count, const char *title, const char *name)
{
    if (*count == 0) text_append(to, "%s%s ", to->length ? "; " : "", title);
    if (*count < MOST_NAMED) text_append(to, "%s%.80s", *count ? ", " : "", name);
    ++*count;
}

static void end_names(text_buffer *to, int count)
{
    if (count > MOST_NAMED) text_append(to, " and %d more", count - MOST_NAMED);
}

static status check_names(const matcher *m)
{
    const match_request *r = m->request;
    const safetensors_header *h = m->header;
    text_buffer text = {0};
    int missing = 0, unexpected = 0;
    int64_t offset = SAFETENSORS_PREFIX;
    for (int i = 0; i < r->contents->count; i++) {
        const checkpoint_tensor *t = &r->contents->tensors[i];
        if (m->out->found[i] || (r->foreign && t->kind == CHECKPOINT_BATCHES)) continue;
        add_name(&text, &missing, "missing", t->name);
    }
    end_names(&text, missing);
    for (int i = 0; i < h->count; i++) {
        if (m->used[i]) continue;
        if (unexpected == 0) offset = safetensors_offset_of(h, h->tensors[i].name);
        add_name(&text, &unexpected, "unexpected", h->tensors[i].name);
    }
    end_names(&text, unexpected);
    status rc = STATUS_OK;
    if (missing || unexpected)
        rc = safetensors_refuse(h->file, offset, "expected the tensors of model %s: %s", r->model->name,
                                text.data ? text.data : "");
    text_free(&text);
    return rc;
}

/* ---- types and shapes ------------------------------------------------------------------------- */

static bool has_shape(const safetensors_tensor *t, shape s)
{
    return t->rank == s.rank && memcmp(t->dims, s.dims, (size_t)s.rank * sizeof s.dims[0]) == 0;
}

static shape reversed(shape s)
{
    return shape_2d(s.dims[1], s.dims[0]);
}

static bool are_transposed(const matcher *m)
{
    for (int i = 0; m->request->foreign && i < m->request->contents->count; i++) {
        const checkpoint_tensor *t = &m->request->contents->tensors[i];
        if (!match_is_conv1d(t->name) || t->shape.rank != 2 || t->shape.dims[0] == t->shape.dims[1]) continue;
        return has_shape(m->out->found[i], reversed(t->shape));
    }
    return false;
}

static status check_tensor(const matcher *m, const checkpoint_tensor *wanted, const safetensors_tensor *t)
{
    const char *file = m->header->file;
    int64_t offset = safetensors_offset_of(m->header, t->name);
    dtype type = t->dtype->type;
    bool counts = wanted->kind == CHECKPOINT_BATCHES;
    if (counts ? type != DTYPE_I64 : !match_is_floating(type))
        return safetensors_refuse(file, offset, "tensor %.100s: expected dtype %s, got %s", t->name,
                                  counts ? "I64" : "F64, F32, F16 or BF16", t->dtype->name);
    bool transposed = m->out->transposed && match_is_conv1d(wanted->name);
    shape s = transposed ? reversed(wanted->shape) : wanted->shape;
    if (has_shape(t, s)) return STATUS_OK;
    char got[160], expected[160];
    return safetensors_refuse(file, offset, "tensor %.100s: expected shape %s, got %s", t->name,
                              safetensors_format_shape(expected, sizeof expected, s.rank, s.dims),
                              safetensors_format_shape(got, sizeof got, t->rank, t->dims));
}

static status check_ties(const matcher *m)
{
    for (int i = 0; i < m->out->tied_count; i++) {
        const safetensors_tensor *a = m->out->tied[i].one, *b = m->out->tied[i].other;
        if (a->dtype == b->dtype && a->elements == b->elements) continue;
        return safetensors_refuse(
            m->header->file, safetensors_offset_of(m->header, b->name),
            "tensor %.100s: expected the dtype and size of %.100s, since model %s ties them", b->name,
            a->name, m->request->model->name);
    }
    return STATUS_OK;
}

static status match_all(matcher *m)
{
    find_all(m);
    TRY(check_names(m));
    m->out->transposed = are_transposed(m);
    for (int i = 0; i < m->request->contents->count; i++)
        if (m->out->found[i]) TRY(check_tensor(m, &m->request->contents->tensors[i], m->out->found[i]));
    return check_ties(m);
}

status match_make(const safetensors_header *h, const match_request *request, match *out)
{
    *out = (match){.found = calloc((size_t)request->contents->count + 1, sizeof *out->found),
                   .tied = calloc((size_t)request->model->layer_count * 2 + 1, sizeof *out->tied)};
    matcher m = {
        .header = h, .request = request, .out = out, .used = calloc((size_t)h->count + 1, sizeof *m.used)};
    status rc = out->found && out->tied && m.used
                    ? match_all(&m)
                    : fail(STATUS_SYSTEM, "%s: no memory for its tensors", h->file);
    free(m.used);
    if (rc != STATUS_OK) match_free(out);
    return rc;
}

void match_free(match *m)
{
    free(m->found);
    free(m->tied);
    *m = (match){0};
}
