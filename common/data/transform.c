#include "common/data/transform.h"

#include "common/base/random.h"
#include "common/base/text.h"

#include <string.h>

enum { SMALL_SIDE = 28, PADDED_SIDE = 32 };

status data_augment_parse(const char *text, unsigned *out)
{
    static const char *const words[] = {[0] = "none",
                                        [DATA_AUGMENT_CROP] = "crop",
                                        [DATA_AUGMENT_FLIP] = "flip",
                                        [DATA_AUGMENT_CROP | DATA_AUGMENT_FLIP] = "crop,flip"};
    int bits;
    TRY(text_parse_choice("--augment", text, words, sizeof *words, sizeof words / sizeof *words, &bits));
    *out = (unsigned)bits;
    return STATUS_OK;
}

augment_draw data_augment_draw(unsigned augment, uint64_t seed, int64_t epoch, int64_t sample)
{
    enum { DRAWS = 3, OFFSETS = 2 * DATA_CROP_PADDING + 1 };
    uint64_t start = random_start(random_bits(seed, (uint64_t)epoch), random_fnv1a64("data.augment"));
    uint64_t first = (uint64_t)sample * DRAWS;
    augment_draw draw = {0};
    if (augment & DATA_AUGMENT_CROP) {
        draw.dy = (int)random_below(start, first, OFFSETS) - DATA_CROP_PADDING;
        draw.dx = (int)random_below(start, first + 1, OFFSETS) - DATA_CROP_PADDING;
    }
    if (augment & DATA_AUGMENT_FLIP) draw.flip = random_below(start, first + 2, 2);
    return draw;
}

/* ---- plan ------------------------------------------------------------------------------------- */

static bool fits_image(const data_form *from, const data_form *to, int64_t *padding)
{
    bool small = from->h == SMALL_SIDE && from->w == SMALL_SIDE;
    bool pad = small && to->h == PADDED_SIDE && to->w == PADDED_SIDE;
    *padding = pad ? (PADDED_SIDE - SMALL_SIDE) / 2 : 0;
    return (pad || (from->h == to->h && from->w == to->w)) && (from->c == to->c || from->c == 1);
}

static bool fits(const data_form *from, const data_form *to, data_transform *out)
{
    if (from->target != to->target || from->classes > to->classes) return false;
    if (from->target == DATA_TARGET_VALUES && from->classes != to->classes) return false;
    if (to->kind == DATA_IMAGE) return from->kind == DATA_IMAGE && fits_image(from, to, &out->padding);
    if (to->kind == DATA_TOKENS)
        return from->kind == DATA_TOKENS && from->sequence == to->sequence &&
               from->vocabulary <= to->vocabulary;
    out->channel_first = from->kind == DATA_IMAGE;
    return from->kind != DATA_TOKENS && data_form_input_elements(from) == to->features;
}

status data_transform_plan(const data_description *set, const data_form *model, unsigned augment,
                           data_transform *out)
{
    char got[128], wanted[128];
    *out = (data_transform){.from = set->form, .to = *model};
    if (!fits(&set->form, model, out))
        return fail(STATUS_CONFIG, "data set %s: expected what the model takes, %s, got %s", set->name,
                    data_form_format(wanted, sizeof wanted, model),
                    data_form_format(got, sizeof got, &set->form));
    if (augment && model->kind != DATA_IMAGE)
        return fail(STATUS_CONFIG, "--augment: expected a model that takes images, got one that takes %s",
                    data_form_format(wanted, sizeof wanted, model));
    for (int c = 0; c < DATA_MAX_CHANNELS && set->form.kind == DATA_IMAGE; c++)
        for (int x = 0; x < 256; x++)
            out->values[c][x] = ((float)x / 255.0f - set->mean[c]) / set->deviation[c];
    return STATUS_OK;
}

/* ---- apply ------------------------------------------------------------------------------------ */

static int64_t clamp(int64_t value, int64_t low, int64_t high)
{
    return value < low ? low : value > high ? high : value;
}

/* Converts `count` pixels. Output pixels are `step` floats apart. If `step` is negative, the pixels are
 * written from right to left. */
static inline void run_of_pixels(const data_transform *t, const uint8_t *stored, int64_t count, int64_t from,
                                 int64_t to, int64_t step, float *out)
{
    for (int64_t x = 0; x < count; x++, stored += from, out += step)
        for (int64_t c = 0; c < to; c++) out[c] = t->values[from < to ? 0 : c][stored[from < to ? 0 : c]];
}

static void stored_run(const data_transform *t, const uint8_t *stored, int64_t count, int64_t step,
                       float *out)
{
    /* In each call the numbers of channels are constants, so that the compiler unrolls the loops over
     * channels. */
    if (t->from.c == 1 && t->to.c == 1)
        run_of_pixels(t, stored, count, 1, 1, step, out);
    else if (t->from.c == 1 && t->to.c == 3)
        run_of_pixels(t, stored, count, 1, 3, step, out);
    else if (t->from.c == 3)
        run_of_pixels(t, stored, count, 3, 3, step, out);
    else
        run_of_pixels(t, stored, count, t->from.c, t->to.c, step, out);
}

static void black_run(const data_transform *t, int64_t count, int64_t step, float *out)
{
    static const uint8_t black[DATA_MAX_CHANNELS];
    for (int64_t x = 0; x < count; x++, out += step) stored_run(t, black, 1, step, out);
}

/* Writes a row of the output. Column x gets the pixel in column x + shift of the stored row, or black if the
 * stored row does not have this column. If `flip` is true, the row is written from right to left. `row` is
 * NULL if the whole row is black. */
static void apply_row(const data_transform *t, const uint8_t *row, int64_t shift, bool flip, float *out)
{
    int64_t width = t->to.w, step = flip ? -t->to.c : t->to.c;
    int64_t begin = row ? clamp(-shift, 0, width) : width;
    int64_t end = row ? clamp(t->from.w - shift, begin, width) : width;
    float *first = out + (flip ? (width - 1) * t->to.c : 0);
    black_run(t, begin, step, first);
    if (end > begin)
        stored_run(t, row + (begin + shift) * t->from.c, end - begin, step, first + begin * step);
    black_run(t, width - end, step, first + end * step);
}

static void apply_image(const data_transform *t, const uint8_t *stored, const augment_draw *draw, float *out)
{
    static const augment_draw none = {0};
    if (!draw) draw = &none;
    for (int64_t y = 0; y < t->to.h; y++) {
        int64_t from = y + draw->dy - t->padding;
        const uint8_t *row = from >= 0 && from < t->from.h ? stored + from * t->from.w * t->from.c : NULL;
        apply_row(t, row, draw->dx - t->padding, draw->flip, out + y * t->to.w * t->to.c);
    }
}

static void apply_vector(const data_transform *t, const uint8_t *stored, float *out)
{
    int64_t plane = t->from.h * t->from.w;
    for (int64_t c = 0; c < t->from.c; c++)
        for (int64_t i = 0; i < plane; i++) out[c * plane + i] = t->values[c][stored[i * t->from.c + c]];
}

void data_transform_apply(const data_transform *t, const void *stored, const augment_draw *draw, void *out)
{
    if (t->to.kind == DATA_IMAGE)
        apply_image(t, stored, draw, out);
    else if (t->channel_first)
        apply_vector(t, stored, out);
    else
        /* Features and tokens have 4 bytes per element. */
        memcpy(out, stored, (size_t)data_form_input_elements(&t->to) * 4);
}
