#include "common/net/rendezvous_impl.h"

#include "common/base/text.h"
#include "common/net/key.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <inttypes.h>
#include <net/if.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool starts(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

static bool is_number(const char *host)
{
    unsigned char address[16];
    return inet_pton(AF_INET, host, address) == 1 || inet_pton(AF_INET6, host, address) == 1;
}

/* Splits "HOST:PORT" or "[V6]:PORT". */
static status split_host(const char *url, const char *at, char host[ADDRESS_TEXT], int64_t *port)
{
    const char *colon = strrchr(at, ':');
    size_t length = colon ? (size_t)(colon - at) : 0;
    if (length == 0 || length >= ADDRESS_TEXT)
        return fail(STATUS_USAGE, "rendezvous: expected tcp://HOST:PORT, got '%s'", url);
    memcpy(host, at, length);
    host[length] = '\0';
    if (host[0] == '[' && host[length - 1] == ']') {
        memmove(host, host + 1, length - 2);
        host[length - 2] = '\0';
    }
    return text_parse_int("rendezvous: port", colon + 1, 0, 65535, port);
}

static void write_tcp(char *out, const char *host, int64_t port)
{
    snprintf(out, ADDRESS_TEXT, strchr(host, ':') ? "tcp://[%.200s]:%" PRId64 : "tcp://%.200s:%" PRId64, host,
             port);
}

/* Replaces localhost by an address, because some containers do not know this name. */
static const char *known(const char *host)
{
    return strcmp(host, "localhost") == 0 ? "127.0.0.1" : host;
}

static status endpoints_of_environment(rendezvous_endpoints *out)
{
    const char *host = getenv("MASTER_ADDR"), *text = getenv("MASTER_PORT");
    const char *agent = getenv("TORCHELASTIC_USE_AGENT_STORE");
    if (!host || !text)
        return fail(STATUS_CONFIG,
                    "rendezvous env://: %s is not set: export MASTER_ADDR=HOST MASTER_PORT=29500, HOST is "
                    "that of rank 0",
                    host ? "MASTER_PORT" : "MASTER_ADDR");
    int64_t port;
    TRY(text_parse_int("MASTER_PORT", text, 1, 65534, &port));
    /* Under torchrun, torchrun's own store uses MASTER_PORT, so the rendezvous uses the next port. */
    if (agent && strcmp(agent, "True") == 0) port++;
    write_tcp(out->listen, "*", port);
    write_tcp(out->connect, known(host), port);
    return STATUS_OK;
}

status rendezvous_address_parse(const char *url, rendezvous_endpoints *out)
{
    *out = (rendezvous_endpoints){0};
    if (strlen(url) >= ADDRESS_TEXT - 16)
        return fail(STATUS_USAGE, "rendezvous: a url of %zu bytes", strlen(url));
    if (starts(url, "env://")) return endpoints_of_environment(out);
    if (starts(url, "tcp://")) {
        char host[ADDRESS_TEXT];
        int64_t port;
        TRY(split_host(url, url + 6, host, &port));
        /* A host name may resolve to different addresses on different hosts. Therefore rank 0 listens at all
         * addresses if the URL contains a name. */
        const char *name = known(host);
        write_tcp(out->listen, is_number(name) ? name : "*", port);
        write_tcp(out->connect, strcmp(name, "*") == 0 ? "127.0.0.1" : name, port);
        return STATUS_OK;
    }
    if (starts(url, "file://") && url[7]) {
        snprintf(out->path, sizeof out->path, "%s", url + 7);
        snprintf(out->listen, sizeof out->listen, "tcp://*:0");
        return STATUS_OK;
    }
    if ((starts(url, "ipc://@") && url[7]) || (starts(url, "inproc://") && url[9])) {
        snprintf(out->listen, sizeof out->listen, "%s", url);
        snprintf(out->connect, sizeof out->connect, "%s", url);
        return STATUS_OK;
    }
    return fail(STATUS_USAGE,
                "rendezvous: expected tcp://HOST:PORT, ipc://@NAME, file://PATH or env://, got '%s'", url);
}

status rendezvous_check(const char *url)
{
    rendezvous_endpoints endpoints;
    return starts(url, "env://") ? STATUS_OK : rendezvous_address_parse(url, &endpoints);
}

static void own_address(char *out, size_t size)
{
    struct ifaddrs *all = NULL;
    snprintf(out, size, "127.0.0.1");
    if (getifaddrs(&all) != 0) return;
    for (const struct ifaddrs *a = all; a; a = a->ifa_next) {
        if (!a->ifa_addr || a->ifa_addr->sa_family != AF_INET) continue;
        if (!(a->ifa_flags & IFF_UP) || a->ifa_flags & IFF_LOOPBACK) continue;
        inet_ntop(AF_INET, &((const struct sockaddr_in *)a->ifa_addr)->sin_addr, out, (socklen_t)size);
        break;
    }
    freeifaddrs(all);
}

void rendezvous_own_address(const char *peer, char *out, size_t size)
{
    const struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_DGRAM};
    struct addrinfo *found = NULL;
    struct sockaddr_in own = {0};
    socklen_t length = sizeof own;
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    /* connect() of a datagram socket sends nothing. It chooses the address of this host. */
    if (peer && getaddrinfo(peer, "9", &hints, &found) == 0 &&
        connect(fd, found->ai_addr, found->ai_addrlen) == 0)
        getsockname(fd, (struct sockaddr *)&own, &length);
    if (found) freeaddrinfo(found);
    if (fd >= 0) close(fd);
    uint32_t address = ntohl(own.sin_addr.s_addr);
    if (address == 0 || address >> 24 == IN_LOOPBACKNET)
        own_address(out, size);
    else
        inet_ntop(AF_INET, &own.sin_addr, out, (socklen_t)size);
}

void rendezvous_address_reachable(rendezvous *r, const char *bound)
{
    char own[64];
    const char *colon = strrchr(bound, ':'), *host = r->options.host;
    if (!r->endpoints.path[0] || !colon) {
        snprintf(r->address, sizeof r->address, "%s", bound);
        return;
    }
    own_address(own, sizeof own);
    write_tcp(r->address, host ? host : own, strtol(colon + 1, NULL, 10));
}

status rendezvous_address_publish(const rendezvous *r)
{
    const char *path = r->endpoints.path;
    if (!path[0]) return STATUS_OK;
    char temporary[ADDRESS_TEXT + 32];
    snprintf(temporary, sizeof temporary, "%s.%d", path, (int)getpid());
    int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR | S_IWUSR);
    FILE *file = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (!file) return fail_errno(STATUS_CANNOT_CREATE, "rendezvous: %s", temporary);
    bool written = fprintf(file, "%s %016" PRIx64 " %s\n", r->address, r->token, r->key) > 0;
    written = fclose(file) == 0 && written;
    if (written && rename(temporary, path) == 0) return STATUS_OK;
    status result = fail_errno(STATUS_CANNOT_CREATE, "rendezvous: %s", path);
    unlink(temporary);
    return result;
}

bool rendezvous_address_lookup(const char *path, char *address, uint64_t *token, char *key)
{
    /* Without O_NONBLOCK, open() would block on a FIFO. */
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    FILE *file = fd >= 0 ? fdopen(fd, "r") : NULL;
    if (!file) return false;
    char line[ADDRESS_TEXT + 128] = "", end;
    struct stat who;
    bool read = fstat(fd, &who) == 0 && S_ISREG(who.st_mode) && who.st_uid == geteuid() &&
                fgets(line, sizeof line, file) &&
                sscanf(line, "%239s %" SCNx64 " %64s%c", address, token, key, &end) == 4;
    fclose(file);
    return read && end == '\n' && starts(address, "tcp://") && net_key_is_valid(key);
}

void rendezvous_address_withdraw(const rendezvous *r)
{
    char address[ADDRESS_TEXT], key[NET_KEY_TEXT];
    uint64_t found;
    const char *path = r->endpoints.path;
    if (path[0] && rendezvous_address_lookup(path, address, &found, key) && found == r->token) unlink(path);
}

char *rendezvous_address_diagnose(const char *address, char *buffer, size_t size)
{
    char host[ADDRESS_TEXT];
    int64_t port;
    buffer[0] = '\0';
    if (!starts(address, "tcp://") || split_host(address, address + 6, host, &port) != STATUS_OK)
        return buffer;
    struct addrinfo *found = NULL;
    int result = getaddrinfo(host, NULL, NULL, &found);
    if (result != 0)
        snprintf(buffer, size, ": the name '%s' is not known (%s)", host, gai_strerror(result));
    else
        freeaddrinfo(found);
    return buffer;
}
