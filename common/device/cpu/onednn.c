#include "common/device/cpu/onednn.h"

#include <oneapi/dnnl/dnnl_debug.h>

#include <assert.h>

status onednn_check(dnnl_status_t rc, const char *what)
{
    if (rc == dnnl_success) return STATUS_OK;
    return fail(rc == dnnl_out_of_memory ? STATUS_SYSTEM : STATUS_INTERNAL, "oneDNN: %s: %s", what,
                dnnl_status2str(rc));
}

status onednn_attributes(dnnl_primitive_attr_t *out)
{
    TRY(onednn_check(dnnl_primitive_attr_create(out), "attributes"));
    return onednn_check(dnnl_primitive_attr_set_scratchpad_mode(*out, dnnl_scratchpad_mode_user),
                        "scratchpad mode");
}

status onednn_memory(dnnl_engine_t engine, const dnnl_memory_desc_t *md, dnnl_memory_t *out)
{
    return onednn_check(dnnl_memory_create(out, md, engine, DNNL_MEMORY_NONE), "memory");
}

status onednn_reorder_open(dnnl_engine_t engine, const dnnl_memory_desc_t *from, const dnnl_memory_desc_t *to,
                           onednn_reorder *out)
{
    if (dnnl_memory_desc_equal(from, to)) return STATUS_OK;
    dnnl_primitive_attr_t attributes = NULL;
    dnnl_primitive_desc_t desc = NULL;
    status rc;
    TRY_GOTO(rc, onednn_attributes(&attributes), done);
    TRY_GOTO(rc,
             onednn_check(dnnl_reorder_primitive_desc_create(&desc, from, engine, to, engine, attributes),
                          "reorder"),
             done);
    const dnnl_memory_desc_t *scratchpad = dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0);
    out->scratchpad_bytes = dnnl_memory_desc_get_size(scratchpad);
    TRY_GOTO(rc, onednn_memory(engine, from, &out->from), done);
    TRY_GOTO(rc, onednn_memory(engine, to, &out->to), done);
    TRY_GOTO(rc, onednn_memory(engine, scratchpad, &out->scratchpad), done);
    TRY_GOTO(rc, onednn_check(dnnl_primitive_create(&out->primitive, desc), "reorder"), done);
done:
    dnnl_primitive_desc_destroy(desc);
    dnnl_primitive_attr_destroy(attributes);
    return rc;
}

void onednn_reorder_close(onednn_reorder *reorder)
{
    dnnl_primitive_destroy(reorder->primitive);
    dnnl_memory_destroy(reorder->from);
    dnnl_memory_destroy(reorder->to);
    dnnl_memory_destroy(reorder->scratchpad);
    *reorder = (onednn_reorder){0};
}

void onednn_reorder_run(const onednn_reorder *reorder, dnnl_stream_t stream, const float *from, float *to,
                        void *scratchpad)
{
    onednn_point(reorder->from, from);
    onednn_point(reorder->to, to);
    onednn_point(reorder->scratchpad, scratchpad);
    dnnl_exec_arg_t args[] = {{DNNL_ARG_FROM, reorder->from},
                              {DNNL_ARG_TO, reorder->to},
                              {DNNL_ARG_SCRATCHPAD, reorder->scratchpad}};
    onednn_execute(reorder->primitive, stream, 3, args);
}

void onednn_execute(dnnl_primitive_t primitive, dnnl_stream_t stream, int count, const dnnl_exec_arg_t *args)
{
    dnnl_status_t rc = dnnl_primitive_execute(primitive, stream, count, args);
    assert(rc == dnnl_success);
    (void)rc;
}

void onednn_point(dnnl_memory_t memory, const void *data)
{
    dnnl_status_t rc = dnnl_memory_set_data_handle(memory, (void *)(uintptr_t)data);
    assert(rc == dnnl_success);
    (void)rc;
}
