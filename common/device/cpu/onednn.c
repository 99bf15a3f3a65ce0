#include "common/device/cpu/onednn.h"

#include <oneapi/dnnl/dnnl_debug.h>

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

status onednn_check(dnnl_status_t rc, const char *what)
{
    if (rc == dnnl_success) return STATUS_OK;
    return fail(rc == dnnl_out_of_memory ? STATUS_SYSTEM : STATUS_INTERNAL, "oneDNN: %s: %s", what,
                dnnl_status2str(rc));
}

/* ---- differences between the versions ---------------------------------------------------------- */

enum { X, W, B, Y, TENSORS };

/* A memory descriptor is a struct in version 2 and a handle in version 3. layout_open() sets `storage` and
 * `out`. `out` is valid until layout_close(storage). */
#if DNNL_VERSION_MAJOR < 3

typedef const dnnl_memory_desc_t *const_layout;

static dnnl_status_t layout_open(const onednn_tensor *t, dnnl_memory_desc_t *storage, const_layout *out)
{
    *out = storage;
    return dnnl_memory_desc_init_by_tag(storage, t->rank, t->dims, t->type, t->tag);
}

static void layout_close(dnnl_memory_desc_t *storage)
{
    (void)storage;
}

static dnnl_status_t create_desc(dnnl_engine_t engine, const onednn_convolution *c,
                                 const const_layout l[TENSORS], const_dnnl_primitive_desc_t hint,
                                 dnnl_primitive_attr_t attributes, dnnl_primitive_desc_t *out)
{
    dnnl_convolution_desc_t desc;
    dnnl_status_t rc;
    if (c->pass == dnnl_backward_data)
        rc = dnnl_convolution_backward_data_desc_init(&desc, dnnl_convolution_direct, l[X], l[W], l[Y],
                                                      c->strides, c->padding, c->padding);
    else if (c->pass == dnnl_backward_weights)
        rc = dnnl_convolution_backward_weights_desc_init(&desc, dnnl_convolution_direct, l[X], l[W], NULL,
                                                         l[Y], c->strides, c->padding, c->padding);
    else
        rc = dnnl_convolution_forward_desc_init(&desc, c->pass, dnnl_convolution_direct, l[X], l[W], l[B],
                                                l[Y], c->strides, c->padding, c->padding);
    return rc == dnnl_success ? dnnl_primitive_desc_create(out, &desc, attributes, engine, hint) : rc;
}

#else

typedef const_dnnl_memory_desc_t const_layout;

static dnnl_status_t layout_open(const onednn_tensor *t, dnnl_memory_desc_t *storage, const_layout *out)
{
    dnnl_status_t rc = dnnl_memory_desc_create_with_tag(storage, t->rank, t->dims, t->type, t->tag);
    *out = *storage;
    return rc;
}

static void layout_close(dnnl_memory_desc_t *storage)
{
    if (*storage) dnnl_memory_desc_destroy(*storage);
}

static dnnl_status_t create_desc(dnnl_engine_t engine, const onednn_convolution *c,
                                 const const_layout l[TENSORS], const_dnnl_primitive_desc_t hint,
                                 dnnl_primitive_attr_t attributes, dnnl_primitive_desc_t *out)
{
    static const dnnl_dims_t dilation = {0};
    if (c->pass == dnnl_backward_data)
        return dnnl_convolution_backward_data_primitive_desc_create(out, engine, dnnl_convolution_direct,
                                                                    l[X], l[W], l[Y], c->strides, dilation,
                                                                    c->padding, c->padding, hint, attributes);
    if (c->pass == dnnl_backward_weights)
        return dnnl_convolution_backward_weights_primitive_desc_create(
            out, engine, dnnl_convolution_direct, l[X], l[W], NULL, l[Y], c->strides, dilation, c->padding,
            c->padding, hint, attributes);
    return dnnl_convolution_forward_primitive_desc_create(out, engine, c->pass, dnnl_convolution_direct, l[X],
                                                          l[W], l[B], l[Y], c->strides, dilation, c->padding,
                                                          c->padding, attributes);
}

#endif

/* ---- descriptions ------------------------------------------------------------------------------- */

static status open_attributes(dnnl_primitive_attr_t *out)
{
    TRY(onednn_check(dnnl_primitive_attr_create(out), "attributes"));
    return onednn_check(dnnl_primitive_attr_set_scratchpad_mode(*out, dnnl_scratchpad_mode_user),
                        "scratchpad mode");
}

status onednn_convolution_desc(dnnl_engine_t engine, const onednn_convolution *c,
                               const_dnnl_primitive_desc_t hint, dnnl_primitive_desc_t *out)
{
    const onednn_tensor *tensors[TENSORS] = {[X] = &c->x, [W] = &c->w, [B] = &c->b, [Y] = &c->y};
    dnnl_memory_desc_t storage[TENSORS] = {0};
    const_layout layouts[TENSORS] = {NULL};
    dnnl_primitive_attr_t attributes = NULL;
    status rc;
    for (int i = 0; i < TENSORS; i++)
        if (tensors[i]->rank)
            TRY_GOTO(rc, onednn_check(layout_open(tensors[i], &storage[i], &layouts[i]), "layout"), done);
    TRY_GOTO(rc, open_attributes(&attributes), done);
    rc = onednn_check(create_desc(engine, c, layouts, hint, attributes, out), "convolution");
done:
    dnnl_primitive_attr_destroy(attributes);
    for (int i = 0; i < TENSORS; i++) layout_close(&storage[i]);
    return rc;
}

/* ---- primitives --------------------------------------------------------------------------------- */

static const_layout layout_of(const onednn_primitive *p, int index)
{
    const_layout layout = NULL;
    dnnl_memory_get_memory_desc(p->arguments[index].memory, &layout);
    return layout;
}

static status open_argument(dnnl_engine_t engine, const_dnnl_primitive_desc_t desc, int argument,
                            onednn_primitive *out)
{
    const_layout layout = dnnl_primitive_desc_query_md(desc, dnnl_query_exec_arg_md, argument);
    dnnl_exec_arg_t *to = &out->arguments[out->count++];
    to->arg = argument;
    return onednn_check(dnnl_memory_create(&to->memory, layout, engine, DNNL_MEMORY_NONE), "memory");
}

void onednn_expect(dnnl_status_t rc)
{
    if (rc == dnnl_out_of_memory || (rc != dnnl_success && errno == ENOMEM)) abort();
    assert(rc == dnnl_success);
}

status onednn_primitive_open(dnnl_engine_t engine, const_dnnl_primitive_desc_t desc, int count,
                             const int *arguments, onednn_primitive *out)
{
    assert(count < ONEDNN_MAX_ARGUMENTS);
    for (int i = 0; i < count; i++) TRY(open_argument(engine, desc, arguments[i], out));
    TRY(open_argument(engine, desc, DNNL_ARG_SCRATCHPAD, out));
    out->scratchpad_bytes = onednn_argument_bytes(out, count);
    return onednn_check(dnnl_primitive_create(&out->primitive, desc), "primitive");
}

void onednn_primitive_close(onednn_primitive *p)
{
    dnnl_primitive_destroy(p->primitive);
    for (int i = 0; i < p->count; i++) dnnl_memory_destroy(p->arguments[i].memory);
    *p = (onednn_primitive){0};
}

void onednn_primitive_run(const onednn_primitive *p, dnnl_stream_t stream, const void *const *data)
{
    dnnl_status_t rc = dnnl_success;
    for (int i = 0; i < p->count && rc == dnnl_success; i++)
        rc = dnnl_memory_set_data_handle(p->arguments[i].memory, (void *)(uintptr_t)data[i]);
    if (rc == dnnl_success) rc = dnnl_primitive_execute(p->primitive, stream, p->count, p->arguments);
    onednn_expect(rc);
}

size_t onednn_argument_bytes(const onednn_primitive *p, int index)
{
    return dnnl_memory_desc_get_size(layout_of(p, index));
}

status onednn_reorder_open(dnnl_engine_t engine, const onednn_primitive *p, int index,
                           const onednn_tensor *tensor, bool back, onednn_primitive *out)
{
    static const int arguments[] = {DNNL_ARG_FROM, DNNL_ARG_TO};
    dnnl_memory_desc_t storage = {0};
    const_layout ours = NULL, theirs = layout_of(p, index);
    dnnl_primitive_attr_t attributes = NULL;
    dnnl_primitive_desc_t desc = NULL;
    status rc;
    TRY_GOTO(rc, onednn_check(layout_open(tensor, &storage, &ours), "layout"), done);
    if (dnnl_memory_desc_equal(ours, theirs)) goto done;
    TRY_GOTO(rc, open_attributes(&attributes), done);
    TRY_GOTO(rc,
             onednn_check(dnnl_reorder_primitive_desc_create(&desc, back ? theirs : ours, engine,
                                                             back ? ours : theirs, engine, attributes),
                          "reorder"),
             done);
    rc = onednn_primitive_open(engine, desc, 2, arguments, out);
done:
    dnnl_primitive_desc_destroy(desc);
    dnnl_primitive_attr_destroy(attributes);
    layout_close(&storage);
    return rc;
}
