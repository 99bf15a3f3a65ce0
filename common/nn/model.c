#include "common/nn/model_build.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

status nn_model_create(const char *name, nn_model **out)
{
    nn_model *m = calloc(1, sizeof *m);
    if (!m) return fail(STATUS_SYSTEM, "no memory for a model");
    snprintf(m->name, sizeof m->name, "%s", name);
    m->output = NN_NONE;
    *out = m;
    return STATUS_OK;
}

void nn_model_free(nn_model **model)
{
    nn_model *m = *model;
    if (!m) return;
    free(m->layers);
    free(m->params);
    free(m->buffers);
    free(m->units);
    nn_recording_free(m->recording);
    free(m);
    *model = NULL;
}

nn_ref model_broken(nn_model *m, status code, const char *format, ...)
{
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (!m->failed) fail(code, "model %s: %s", m->name, text);
    m->failed = true;
    return NN_NONE;
}

bool model_grow(nn_model *m, void **array, int count, int *capacity, size_t size)
{
    if (count < *capacity) return true;
    int more = *capacity ? *capacity * 2 : 32;
    void *bigger = realloc(*array, (size_t)more * size);
    if (!bigger) {
        model_broken(m, STATUS_SYSTEM, "no memory for its layers");
        return false;
    }
    *array = bigger;
    *capacity = more;
    return true;
}

int nn_find_param(const nn_model *m, const char *name)
{
    for (int i = 0; i < m->param_count; i++)
        if (strcmp(m->params[i].name, name) == 0) return i;
    return NN_NONE;
}

int nn_find_buffer(const nn_model *m, const char *name)
{
    for (int i = 0; i < m->buffer_count; i++)
        if (strcmp(m->buffers[i].name, name) == 0) return i;
    return NN_NONE;
}

void nn_unit(nn_model *m, const char *prefix)
{
    if (m->failed || !model_grow(m, (void **)&m->units, m->unit_count, &m->unit_capacity, sizeof *m->units))
        return;
    snprintf(m->units[m->unit_count++], sizeof *m->units, "%s", prefix);
}

static int layers_of(const nn_model *m, int param)
{
    int count = 0;
    for (int i = 0; i < m->layer_count; i++)
        for (int j = 0; j < NN_MAX_LAYER_PARAMS; j++) count += m->layers[i].param[j] == param;
    return count;
}

static void assign_units(nn_model *m)
{
    for (int i = 0; i < m->param_count; i++) {
        m->params[i].unit = NN_NONE;
        for (int u = 0; u < m->unit_count && layers_of(m, i) < 2; u++)
            if (strncmp(m->params[i].name, m->units[u], strlen(m->units[u])) == 0) m->params[i].unit = u;
    }
}

status nn_model_finish(nn_model *m, nn_ref output, nn_loss_kind loss)
{
    if (!m->failed && (output < 0 || output >= m->layer_count))
        model_broken(m, STATUS_INTERNAL, "layer output has no input");
    if (!m->failed && m->layers[output].kind == NN_INPUT)
        model_broken(m, STATUS_INTERNAL, "it has no layers");
    if (m->failed)
        return error_code() != STATUS_OK ? error_code() : fail(STATUS_INTERNAL, "model %s failed", m->name);
    m->output = output;
    m->loss = loss;
    assign_units(m);
    m->classes = model_columns(m->layers[output].sample);
    m->rows_per_sample = shape_elements(m->layers[output].sample) / m->classes;
    return STATUS_OK;
}
