#include "common/net/key.h"

#include "common/base/random.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <zmq.h>

status net_key_draw(char out[NET_KEY_TEXT])
{
    uint8_t bytes[NET_KEY_BYTES];
    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes)
        return fail_errno(STATUS_SYSTEM, "no random bytes for the key of a job");
    for (int i = 0; i < NET_KEY_BYTES; i++) snprintf(out + 2 * i, 3, "%02x", bytes[i]);
    return STATUS_OK;
}

bool net_key_is_valid(const char *text)
{
    return strlen(text) == NET_KEY_TEXT - 1 && strspn(text, "0123456789abcdefABCDEF") == NET_KEY_TEXT - 1;
}

static void read_key(const char *text, uint8_t out[NET_KEY_BYTES])
{
    for (int i = 0; i < NET_KEY_BYTES; i++) {
        unsigned byte = 0;
        sscanf(text + 2 * i, "%2x", &byte);
        out[i] = (uint8_t)byte;
    }
}

static void make_pair(const uint8_t bytes[NET_KEY_BYTES], char secret[NET_CURVE_TEXT],
                      char public[NET_CURVE_TEXT])
{
    zmq_z85_encode(secret, bytes, NET_KEY_BYTES);
    public[0] = '\0';
    zmq_curve_public(public, secret);
}

void net_key_pair(const char *text, char secret[NET_CURVE_TEXT], char public[NET_CURVE_TEXT])
{
    uint8_t bytes[NET_KEY_BYTES];
    read_key(text, bytes);
    make_pair(bytes, secret, public);
}

static uint64_t one_way(const uint8_t bytes[NET_KEY_BYTES], const char *text)
{
    char secret[NET_CURVE_TEXT], public[NET_CURVE_TEXT];
    uint8_t mixed[NET_KEY_BYTES];
    uint64_t hash = random_fnv1a64(text), number;
    memcpy(mixed, bytes, sizeof mixed);
    for (size_t i = 0; i < sizeof hash; i++) mixed[8 + i] ^= (uint8_t)(hash >> 8 * i);
    make_pair(mixed, secret, public);
    zmq_z85_decode(mixed, public);
    memcpy(&number, mixed, sizeof number);
    return number;
}

uint64_t net_public_number(uint64_t secret, const char *text)
{
    uint8_t bytes[NET_KEY_BYTES] = {0};
    memcpy(bytes + 16, &secret, sizeof secret);
    return one_way(bytes, text);
}

uint64_t net_key_number(const char *key, const char *text)
{
    uint8_t bytes[NET_KEY_BYTES];
    read_key(key, bytes);
    return one_way(bytes, text);
}

const char *net_address_key(const char *url)
{
    size_t length = strlen(url), key = NET_KEY_TEXT - 1;
    bool has = length > key && url[length - key - 1] == '/' && net_key_is_valid(url + length - key);
    return has ? url + length - key : NULL;
}

char *net_address_without_key(const char *url)
{
    const char *key = net_address_key(url);
    return strndup(url, key ? (size_t)(key - 1 - url) : strlen(url));
}
