#include "common/nn/stages.h"

#include "common/nn/program.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Places at which a model can be cut, and the cost of the model's layers. */
typedef struct places {
    nn_ref *at;      /* [count] layers in front of which the model can be cut */
    nn_ref *crosses; /* [count] layer whose output crosses the cut */
    int count;
    double *flops; /* [layers + 1] flops[i] is the cost of all layers before layer i, per sample */
} places;

/* Returns the layer before `at` whose output is read by layer `at` or a later layer. Returns NN_NONE if there
 * are several. */
static nn_ref crossing(const nn_model *m, nn_ref at)
{
    nn_ref found = NN_NONE;
    for (nn_ref l = at; l < m->layer_count; l++)
        for (int i = 0; i < NN_MAX_INPUTS; i++) {
            nn_ref r = m->layers[l].input[i];
            if (r == NN_NONE || r >= at || r == found) continue;
            if (found != NN_NONE) return NN_NONE;
            found = r;
        }
    return found;
}

/* Lists the layers in front of which the model can be cut. A forward operation begins at each of these
 * layers. Does not list the first operation, or operations of the head after its first one. */
static void find_places(const nn_program *p, places *out)
{
    const nn_model *m = p->model;
    for (int i = 1; i < p->forward_end; i++) {
        nn_ref at = p->ops[i].layer;
        bool begins =
            at > p->ops[i - 1].layer && at > (out->count ? out->at[out->count - 1] : p->ops[0].layer);
        bool in_head = p->ops[i].rows_vary && p->ops[i - 1].rows_vary;
        nn_ref r = begins && !in_head ? crossing(m, at) : NN_NONE;
        if (r == NN_NONE || m->layers[r].kind == NN_INPUT) continue;
        out->at[out->count] = at;
        out->crosses[out->count++] = r;
    }
}

static status open_places(const nn_model *m, places *out)
{
    enum { BATCH = 2 }; /* The batch has two samples, because BatchNorm needs at least two values. */
    nn_program_config config = {
        .batch = BATCH, .mode = NN_TRAIN, .type = DTYPE_F32, .masked_loss = true, .world = 1};
    nn_program *p = NULL;
    size_t layers = (size_t)m->layer_count + 1;
    *out = (places){.at = calloc(layers, sizeof *out->at),
                    .crosses = calloc(layers, sizeof *out->crosses),
                    .flops = calloc(layers, sizeof *out->flops)};
    if (!out->at || !out->crosses || !out->flops)
        return fail(STATUS_SYSTEM, "no memory to cut model %s", m->name);
    TRY(nn_program_compile(m, &config, &p));
    find_places(p, out);
    for (int i = 0; i < p->op_count; i++)
        out->flops[p->ops[i].layer + 1] += op_cost_of(&p->ops[i].desc).flops / BATCH;
    for (int l = 0; l < m->layer_count; l++) out->flops[l + 1] += out->flops[l];
    nn_program_free(&p);
    return STATUS_OK;
}

/* Returns the cost of the layers between place `from` and place `to`. If `from` is -1, the range begins with
 * the first layer. If `to` is p->count, the range ends with the last layer. */
static double cost(const places *p, int layers, int from, int to)
{
    return p->flops[to == p->count ? layers : p->at[to]] - (from < 0 ? 0 : p->flops[p->at[from]]);
}

/* Chooses the places that minimize the cost of the most expensive stage. Stage i ends at place chosen[i]. */
static status choose(const places *p, int layers, int stages, int *chosen)
{
    int n = p->count + 1; /* number of places, including the end of the model */
    /* [stages][n] best[s][to] is the least possible cost of the most expensive stage among stages 0 to s, if
     * stage s ends at place `to`. */
    double *best = calloc((size_t)(stages * n), sizeof *best);
    int *from = calloc((size_t)(stages * n), sizeof *from);
    bool enough = best && from;
    for (int s = 0; enough && s < stages; s++)
        for (int to = 0; to < n; to++) {
            double *least = &best[s * n + to];
            *least = s == 0 ? cost(p, layers, -1, to) : INFINITY;
            for (int k = s - 1; s > 0 && k < to; k++) {
                double stage = cost(p, layers, k, to),
                       most = best[(s - 1) * n + k] > stage ? best[(s - 1) * n + k] : stage;
                if (most >= *least) continue;
                *least = most;
                from[s * n + to] = k;
            }
        }
    for (int s = stages - 1, to = p->count; enough && s >= 0; s--) {
        chosen[s] = to;
        to = from[s * n + to];
    }
    free(best);
    free(from);
    return enough ? STATUS_OK : fail(STATUS_SYSTEM, "no memory to cut a model");
}

bool nn_stage_uses(const nn_model *m, const nn_cut *cut, int stage, int param)
{
    const nn_stage *s = &cut->stages[stage];
    for (nn_ref l = s->begin; l < s->end; l++)
        for (int i = 0; i < NN_MAX_LAYER_PARAMS; i++)
            if (m->layers[l].param[i] == param) return true;
    return false;
}

static void describe(const nn_model *m, const places *p, const int *chosen, nn_cut *out)
{
    for (int i = 0; i < out->count; i++) {
        bool last = i == out->count - 1;
        nn_stage *s = &out->stages[i];
        *s = (nn_stage){.begin = i == 0 ? 1 : p->at[chosen[i - 1]],
                        .end = last ? m->layer_count : p->at[chosen[i]],
                        .output = last ? m->output : p->crosses[chosen[i]]};
        s->crosses = last ? 0 : shape_elements(m->layers[s->output].sample);
        s->flops = p->flops[s->end] - (i == 0 ? 0 : p->flops[s->begin]);
        for (int param = 0; param < m->param_count; param++)
            if (nn_stage_uses(m, out, i, param)) s->parameters += m->params[param].elements;
    }
}

status nn_cut_model(const nn_model *m, int stages, nn_cut *out)
{
    places p = {0};
    int chosen[NN_MOST_STAGES];
    *out = (nn_cut){.count = stages};
    if (stages < 1 || stages > NN_MOST_STAGES)
        return fail(STATUS_CONFIG, "--stages: expected 1 to %d, got %d", NN_MOST_STAGES, stages);
    status rc = open_places(m, &p);
    if (rc == STATUS_OK && stages > p.count + 1)
        rc = fail(STATUS_CONFIG,
                  "--stages: expected at most %d for model %s, which can be cut in %d place%s, got %d",
                  p.count + 1, m->name, p.count, p.count == 1 ? "" : "s", stages);
    if (rc == STATUS_OK) rc = choose(&p, m->layer_count, stages, chosen);
    if (rc == STATUS_OK) describe(m, &p, chosen, out);
    free(p.at);
    free(p.crosses);
    free(p.flops);
    return rc;
}

int nn_stage_of_param(const nn_model *m, const nn_cut *cut, int param)
{
    int stage = 0;
    while (stage < cut->count - 1 && !nn_stage_uses(m, cut, stage, param)) stage++;
    return stage;
}

int nn_stage_of_buffer(const nn_model *m, const nn_cut *cut, int buffer)
{
    nn_ref layer = 0;
    int stage = 0;
    while (m->layers[layer].buffer[0] != buffer && m->layers[layer].buffer[1] != buffer) layer++;
    while (cut->stages[stage].end <= layer) stage++;
    return stage;
}

/* ---- a stage as a model ------------------------------------------------------------------------- */

static status allocate(const nn_model *m, const nn_stage *s, nn_model *out)
{
    int layers = s->end - s->begin + 1;
    out->layers = calloc((size_t)layers, sizeof *out->layers);
    out->params = calloc((size_t)m->param_count + 1, sizeof *out->params);
    out->buffers = calloc((size_t)m->buffer_count + 1, sizeof *out->buffers);
    out->units = calloc((size_t)m->unit_count + 1, sizeof *out->units);
    if (!out->layers || !out->params || !out->buffers || !out->units)
        return fail(STATUS_SYSTEM, "no memory for a stage of model %s", m->name);
    out->layer_count = layers;
    out->unit_count = m->unit_count;
    if (m->unit_count > 0) memcpy(out->units, m->units, (size_t)m->unit_count * sizeof *m->units);
    return STATUS_OK;
}

static void copy_layers(const nn_model *m, const nn_stage *s, nn_model *out)
{
    out->layers[0] = m->layers[0];
    if (out->received) {
        out->layers[0].sample = m->layers[s[-1].output].sample;
        out->layers[0].vocabulary = 0;
    }
    for (nn_ref l = s->begin; l < s->end; l++) {
        nn_layer *copy = &out->layers[l - s->begin + 1];
        *copy = m->layers[l];
        /* References to layers before the stage become references to the stage's input, layer 0. */
        for (int i = 0; i < NN_MAX_INPUTS; i++)
            if (copy->input[i] != NN_NONE)
                copy->input[i] = copy->input[i] < s->begin ? 0 : copy->input[i] - s->begin + 1;
    }
}

static void copy_params(const nn_model *m, const nn_cut *cut, int stage, nn_model *out)
{
    const nn_stage *s = &cut->stages[stage];
    for (int p = 0; p < m->param_count; p++) {
        if (!nn_stage_uses(m, cut, stage, p)) continue;
        nn_param *copy = &out->params[out->param_count];
        *copy = m->params[p];
        copy->layer = NN_NONE;
        for (int i = 0; i < cut->count; i++)
            if (nn_stage_uses(m, cut, i, p)) copy->stages |= UINT64_C(1) << i;
        copy->repeated = stage > nn_stage_of_param(m, cut, p);
        for (nn_ref l = s->begin; l < s->end; l++)
            for (int i = 0; i < NN_MAX_LAYER_PARAMS; i++) {
                if (m->layers[l].param[i] != p) continue;
                out->layers[l - s->begin + 1].param[i] = out->param_count;
                if (copy->layer == NN_NONE) copy->layer = l - s->begin + 1;
            }
        out->parameter_elements += copy->elements;
        out->param_count++;
    }
}

static void copy_buffers(const nn_model *m, const nn_stage *s, nn_model *out)
{
    for (nn_ref l = s->begin; l < s->end; l++)
        for (int i = 0; i < 2; i++) {
            int buffer = m->layers[l].buffer[i];
            if (buffer == NN_NONE) continue;
            out->buffers[out->buffer_count] = m->buffers[buffer];
            out->layers[l - s->begin + 1].buffer[i] = out->buffer_count++;
        }
}

status nn_stage_model(const nn_model *m, const nn_cut *cut, int stage, nn_model **out)
{
    const nn_stage *s = &cut->stages[stage];
    TRY(nn_model_create(m->name, out));
    nn_model *copy = *out;
    status rc = allocate(m, s, copy);
    if (rc != STATUS_OK) {
        nn_model_free(out);
        return rc;
    }
    copy->received = stage > 0;
    copy->sent = stage < cut->count - 1;
    copy->input_kind = m->input_kind;
    copy_layers(m, s, copy);
    copy_params(m, cut, stage, copy);
    copy_buffers(m, s, copy);
    copy->loss = m->loss;
    copy->output = s->output - s->begin + 1;
    shape sample = m->layers[s->output].sample;
    copy->classes = sample.dims[sample.rank - 1];
    copy->rows_per_sample = shape_elements(sample) / copy->classes;
    return STATUS_OK;
}
