#include "ps/offer.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define FIRST_LINE "psring parameter server 2"
enum { OWN_LINES = 5, LINE_MAX = 1536 };
_Static_assert(LINE_MAX > PS_OFFER_SHARES * 2 * DEVICE_SHARE_BYTES + 16, "a line must hold all shares");

static void describe_shares(text_buffer *t, const ps_offer_own *own)
{
    text_append(t, "shares %d ", own->share_count);
    for (int i = 0; i < own->share_count; i++)
        for (int b = 0; b < DEVICE_SHARE_BYTES; b++) text_append(t, "%02x", own->shares[i].bytes[b]);
    text_append(t, "\n");
}

static void describe_policy(text_buffer *t, const char *name, const ps_policy *p, const ps_options *o)
{
    text_append(t, "policy %s\n", name);
    text_append(t, "consistency %d, staleness %" PRId64 "\n", (int)p->consistency, p->staleness);
    text_append(t, "partition-bytes %" PRId64 "\n", p->partition_bytes);
    text_append(t, "priority %d\n", (int)p->priority);
    text_append(t, "servers %" PRId64 ", placement %d\n", p->servers, (int)p->placement);
    text_append(t, "server-optimizer %s\n", p->server_optimizer ? "on" : "off");
    text_append(t, "divide %s\n", p->divide_before ? "before" : "after");
    if (p->consistency == PS_DATA_PARALLEL)
        text_append(t, "chunks %" PRId64 " and %" PRId64 ", loss %d\n", p->replicate_bytes, p->reduce_bytes, (int)p->loss);
    text_append(t, "payload %d, transport %d\n", o->payload, o->transport);
}

static void describe_optimizer(text_buffer *t, const optimizer_options *o)
{
    text_append(t, "optimizer %d, momentum %.17g, dampening %.17g, nesterov %d, weight-decay %.17g\n", o->kind, o->momentum,
                o->dampening, o->nesterov, o->weight_decay);
    text_append(t, "optimizer beta1 %.17g, beta2 %.17g, eps %.17g, clip-norm %.17g\n", o->beta1, o->beta2, o->eps,
                o->clip_norm);
}

static void describe_params(text_buffer *t, const param_set *set)
{
    char shape[64];
    text_append(t, "device %s\n", device_get_info(set->device)->name);
    for (int i = 0; i < set->model->param_count; i++) {
        const nn_param *p = &set->model->params[i];
        text_append(t, "parameter %d: %s %s %s%s\n", i, p->name, shape_format(shape, sizeof shape, p->shape),
                    dtype_name(set->type), set->layouts[i].plain ? "" : ", in the device's layout");
    }
    for (int i = 0; i < set->model->buffer_count; i++)
        text_append(t, "buffer %d: %s %" PRId64 "\n", i, set->model->buffers[i].name, set->model->buffers[i].elements);
}

status ps_offer_make(const ps_offer_own *own, int world, const char *policy_name, const ps_policy *policy,
                     const ps_options *options, const param_set *params, const optimizer *optimizer, sync_blob *out)
{
    text_buffer t = {0};
    text_append(&t, FIRST_LINE "\nhost %016" PRIx64 "\nshared %d\nurl %s\n", own->host, own->shared, own->url);
    describe_shares(&t, own);
    text_append(&t, "ranks %d\n", world);
    describe_policy(&t, policy_name, policy, options);
    describe_optimizer(&t, optimizer_get_options(optimizer));
    describe_params(&t, params);
    if (t.out_of_memory) {
        text_free(&t);
        return fail(STATUS_SYSTEM, "no memory for what parameter servers and ranks tell each other");
    }
    *out = (sync_blob){t.data, t.length};
    return STATUS_OK;
}

/* The line at `at`, copied and ended; returns where the next begins. */
static size_t read_line(const sync_blob *b, size_t at, char line[LINE_MAX])
{
    const char *text = b->data;
    size_t length = 0;
    while (at < b->bytes && text[at] != '\n') {
        if (length + 1 < LINE_MAX) line[length++] = text[at];
        at++;
    }
    line[length] = '\0';
    return at < b->bytes ? at + 1 : at;
}

/* "shares 1 00ff..." */
static bool read_shares(const char *line, ps_offer_own *own)
{
    int at = 0;
    if (sscanf(line, "shares %d %n", &own->share_count, &at) != 1 || at == 0) return false;
    if (own->share_count < 0 || own->share_count > PS_OFFER_SHARES) return false;
    line += at;
    if (strlen(line) != (size_t)own->share_count * 2 * DEVICE_SHARE_BYTES) return false;
    for (int i = 0; i < own->share_count * DEVICE_SHARE_BYTES; i++) {
        unsigned byte;
        if (sscanf(line + 2 * i, "%2x", &byte) != 1) return false;
        own->shares[i / DEVICE_SHARE_BYTES].bytes[i % DEVICE_SHARE_BYTES] = (uint8_t)byte;
    }
    return true;
}

status ps_offer_read(const sync_blob *offer, const char *who, ps_offer_own *own, char *url, size_t size)
{
    char first[LINE_MAX], host[LINE_MAX], shared[LINE_MAX], address[LINE_MAX], shares[LINE_MAX];
    size_t at = read_line(offer, 0, first);
    at = read_line(offer, at, host);
    at = read_line(offer, at, shared);
    at = read_line(offer, at, address);
    read_line(offer, at, shares);
    int is_shared = 0;
    if (strcmp(first, FIRST_LINE) != 0 || sscanf(host, "host %" SCNx64, &own->host) != 1 ||
        sscanf(shared, "shared %d", &is_shared) != 1 || strncmp(address, "url ", 4) != 0 ||
        !read_shares(shares, own))
        return fail(STATUS_PROTOCOL, "%s: found '%s', expected is '" FIRST_LINE "'", who, first);
    own->shared = is_shared;
    snprintf(url, size, "%s", address + 4);
    own->url = url;
    return STATUS_OK;
}

status ps_offer_compare(const sync_blob *mine, const char *me, const sync_blob *other, const char *who)
{
    char a[LINE_MAX], b[LINE_MAX];
    size_t at = 0, there = 0;
    for (int line = 0; at < mine->bytes || there < other->bytes; line++) {
        at = read_line(mine, at, a);
        there = read_line(other, there, b);
        if (line < OWN_LINES || strcmp(a, b) == 0) continue;
        return fail(STATUS_PROTOCOL, "%s and %s do not fit together: found '%s' and '%s'", me, who, *a ? a : "nothing more",
                    *b ? b : "nothing more");
    }
    return STATUS_OK;
}
