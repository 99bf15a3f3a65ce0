#include "common/data/dataset_impl.h"

#include "common/base/random.h"
#include "common/base/text.h"
#include "common/ops/op.h"

#include <endian.h>
#include <stdio.h>
#include <string.h>

enum {
    MAX_SIDE = 4096,
    MAX_FEATURES = 1 << 24,
    MAX_CLASSES = 1 << 24,
    MAX_SAMPLES = 1 << 30,
    DIGITS_MAX = 24
};
static const int64_t initial_samples[DATA_PARTS] = {50000, 1000};

/* ---- form ------------------------------------------------------------------------------------- */

static status parse_number(const char **text, const char *ends, const char *what, int64_t high, int64_t *out)
{
    char digits[DIGITS_MAX];
    size_t length = strcspn(*text, ends);
    snprintf(digits, sizeof digits, "%.*s", (int)length, *text);
    TRY(text_parse_int(what, digits, 1, high, out));
    *text += length;
    return STATUS_OK;
}

static status parse_shape(const char **text, bool tokens, data_form *out)
{
    size_t length = strcspn(*text, ":");
    const char *cross = memchr(*text, 'x', length);
    if (!cross) {
        out->kind = tokens ? DATA_TOKENS : DATA_FEATURES;
        return parse_number(text, ":", tokens ? "--data synthetic: tokens" : "--data synthetic: features",
                            MAX_FEATURES, tokens ? &out->sequence : &out->features);
    }
    out->kind = DATA_IMAGE;
    TRY(parse_number(text, "x", "--data synthetic: channels", DATA_MAX_CHANNELS, &out->c));
    (*text)++;
    TRY(parse_number(text, "x:", "--data synthetic: height", MAX_SIDE, &out->h));
    if (**text != 'x')
        return fail(STATUS_USAGE,
                    "--data synthetic: expected a shape of one number (features, tokens) or three "
                    "(channels x height x width), got two");
    (*text)++;
    return parse_number(text, ":", "--data synthetic: width", MAX_SIDE, &out->w);
}

static bool of_tokens(data_target target)
{
    return target == DATA_TARGET_MASKED || target == DATA_TARGET_NEXT;
}

status synthetic_form(const char *argument, const data_form *model, data_form *out, int64_t *samples)
{
    if (!argument && !model)
        return fail(STATUS_CONFIG,
                    "--data synthetic: expected synthetic:SHAPE:CLASSES, since no model gives the shape");
    *samples = 0;
    *out = model ? *model : (data_form){.target = DATA_TARGET_CLASS};
    if (!argument) return STATUS_OK;
    const char *text = argument;
    data_form given = {.target = out->target, .vocabulary = out->vocabulary, .classes = out->classes};
    TRY(parse_shape(&text, model && model->kind == DATA_TOKENS, &given));
    if (given.kind != DATA_TOKENS && of_tokens(given.target)) given.target = DATA_TARGET_CLASS;
    if (*text == ':') {
        text++;
        TRY(parse_number(&text, ":", "--data synthetic: classes", MAX_CLASSES, &given.classes));
        if (of_tokens(given.target)) given.vocabulary = given.classes;
    }
    if (*text == ':') {
        text++;
        TRY(parse_number(&text, "", "--data synthetic: samples", MAX_SAMPLES, samples));
    }
    if (!given.classes)
        return fail(STATUS_CONFIG,
                    "--data synthetic:%s: expected synthetic:SHAPE:CLASSES, since no model gives the classes",
                    argument);
    *out = given;
    return STATUS_OK;
}

/* ---- values ----------------------------------------------------------------------------------- */

static uint64_t stream(uint64_t seed, int part, const char *what)
{
    char name[32];
    snprintf(name, sizeof name, "data.%s.%s", part == DATA_TRAIN ? "train" : "test", what);
    return random_start(seed, random_fnv1a64(name));
}

static status open_synthetic(dataset *set, const dataset_config *config, const char *argument)
{
    data_description *d = &set->description;
    int64_t training;
    TRY(synthetic_form(argument, config->model, &d->form, &training));
    for (int part = 0; part < DATA_PARTS; part++) {
        d->samples[part] = part == DATA_TRAIN && training    ? training
                           : config->synthetic_samples[part] ? config->synthetic_samples[part]
                                                             : initial_samples[part];
        set->synthetic[part] = (synthetic_part){.input = stream(config->seed, part, "input"),
                                                .target = stream(config->seed, part, "target"),
                                                .mask = stream(config->seed, part, "mask")};
    }
    for (int c = 0; c < DATA_MAX_CHANNELS; c++) d->mean[c] = d->deviation[c] = 0.5f;
    return STATUS_OK;
}

static void draw_pixels(uint64_t start, uint64_t sample, uint64_t pixels, uint8_t *out)
{
    uint64_t words = (pixels + 7) / 8, first = sample * words;
    for (uint64_t i = 0; i < words; i++) {
        uint64_t bits = htole64(random_bits(start, first + i));
        memcpy(out + 8 * i, &bits, i + 1 < words || pixels % 8 == 0 ? 8 : pixels % 8);
    }
}

static void draw_signed(uint64_t start, uint64_t sample, uint64_t count, float *out)
{
    for (uint64_t i = 0; i < count; i++) out[i] = (float)random_signed(start, sample * count + i);
}

/* Draws tokens `skip` to `skip` + count - 1 of a sample. In the stream of random numbers, each sample has
 * `drawn` consecutive numbers, one per token. */
static void draw_tokens(uint64_t start, uint64_t sample, uint64_t drawn, uint64_t skip, uint64_t count,
                        uint64_t vocabulary, int32_t *out)
{
    for (uint64_t i = 0; i < count; i++)
        out[i] = (int32_t)random_below(start, sample * drawn + skip + i, vocabulary);
}

void synthetic_input(const dataset *set, data_part part, int64_t index, void *out)
{
    const data_form *form = &set->description.form;
    uint64_t start = set->synthetic[part].input, sample = (uint64_t)index;
    uint64_t elements = (uint64_t)data_form_input_elements(form);
    if (form->kind == DATA_IMAGE)
        draw_pixels(start, sample, elements, out);
    else if (form->kind == DATA_FEATURES)
        draw_signed(start, sample, elements, out);
    else
        draw_tokens(start, sample, elements + (form->target == DATA_TARGET_NEXT), 0, elements,
                    (uint64_t)form->vocabulary, out);
}

static void draw_masked(const synthetic_part *part, uint64_t sample, uint64_t sequence, uint64_t vocabulary,
                        int32_t *out)
{
    bool any = false;
    draw_tokens(part->target, sample, sequence, 0, sequence, vocabulary, out);
    for (uint64_t i = 0; i < sequence; i++)
        any |= random_uniform(part->mask, sample * sequence + i) < SYNTHETIC_MASKED;
    uint64_t only = any ? sequence : random_below(random_mix(part->mask), sample, sequence);
    for (uint64_t i = 0; i < sequence; i++)
        if (i != only && random_uniform(part->mask, sample * sequence + i) >= SYNTHETIC_MASKED)
            out[i] = LOSS_IGNORE;
}

void synthetic_target(const dataset *set, data_part which, int64_t index, void *target)
{
    const data_form *form = &set->description.form;
    const synthetic_part *part = &set->synthetic[which];
    uint64_t sample = (uint64_t)index, sequence = (uint64_t)form->sequence, classes = (uint64_t)form->classes;
    if (form->target == DATA_TARGET_CLASS)
        *(int32_t *)target = (int32_t)random_below(part->target, sample, classes);
    else if (form->target == DATA_TARGET_VALUES)
        draw_signed(part->target, sample, classes, target);
    else if (form->target == DATA_TARGET_MASKED)
        draw_masked(part, sample, sequence, classes, target);
    else
        draw_tokens(part->input, sample, sequence + 1, 1, sequence, (uint64_t)form->vocabulary, target);
}

const dataset_type dataset_synthetic = {"synthetic", "synthetic[:SHAPE[:CLASSES[:SAMPLES]]]", open_synthetic};
