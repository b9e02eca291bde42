/* A model server for benchmarks, OpenAI's and Anthropic's: one thread, epoll, as fast as a socket takes bytes.

     upstream [-p PORT] [-t TOOL] [-a ARGUMENTS]

   prints "listening on http://127.0.0.1:PORT" (port 0, the default, takes a free one) and answers every POST: below
   /messages as Anthropic does, elsewhere as OpenAI's chat.completions; with a stream when the request says
   "stream": true, else with one document that has one stamp. The model says how: bench[-nN][-rR][-toolK]
     -nN     N chunks of text (100 unless said), each with "@" and the monotonic clock in microseconds
     -rR     R chunks a second instead of as many as fit
     -toolK  K steps of calling TOOL with ARGUMENTS come first; a step counts as done when its result is
             among the request's messages
*/
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "answers.h"
#include "measure.h"

enum { OUT_CAPACITY = 1 << 16, IN_CAPACITY = 1 << 14, MAX_EVENTS = 1024 };

struct client {
    int fd;
    char *in, *out;
    size_t in_length, in_capacity, out_length, out_sent;
    bool streaming, wants_write;
    int chunks, chunks_sent;
    int64_t interval, due; /* microseconds; interval 0 = unpaced */
    int place;             /* among the paced streams, -1 = not there */
    const struct voice *voice;
};

static int poller;

/* ---- the paced streams, a heap with the one that is due first on top */

static struct client **paced;
static int paced_count, paced_capacity;

static void place(struct client *client, int at) {
    paced[at] = client;
    client->place = at;
}

static void rise(int at) {
    struct client *client = paced[at];
    for (; at > 0 && paced[(at - 1) / 2]->due > client->due; at = (at - 1) / 2)
        place(paced[(at - 1) / 2], at);
    place(client, at);
}

static void sink(int at) {
    struct client *client = paced[at];
    for (int child; (child = 2 * at + 1) < paced_count; at = child) {
        if (child + 1 < paced_count && paced[child + 1]->due < paced[child]->due)
            child++;
        if (paced[child]->due >= client->due)
            break;
        place(paced[child], at);
    }
    place(client, at);
}

static void pace(struct client *client) {
    if (paced_count == paced_capacity) {
        paced_capacity = paced_capacity ? 2 * paced_capacity : 1024;
        paced = realloc(paced, (size_t)paced_capacity * sizeof *paced);
    }
    place(client, paced_count++);
    rise(client->place);
}

static void unpace(struct client *client) {
    int at = client->place;
    if (at < 0)
        return;
    client->place = -1;
    if (at == --paced_count)
        return;
    place(paced[paced_count], at);
    rise(at);
    sink(paced[at]->place);
}

/* ---- writing */

static void put(struct client *client, const struct text *text, int64_t mark) {
    char *to = client->out + client->out_length;
    memcpy(to, text->bytes, text->length);
    client->out_length += text->length;
    for (int digit = STAMP_DIGITS - 1; text->mark && digit >= 0; digit--, mark /= 10)
        to[text->mark + (size_t)digit] = (char)('0' + mark % 10);
}

static bool has_room(const struct client *client, size_t size) { return OUT_CAPACITY - client->out_length >= size; }

/* Puts up to `most` chunks, as many as there is room for, and the ending behind the last one. Each has a stamp
   of its own, a microsecond before the last one's: some gateways take equal chunks for a model that hangs. */
static void put_chunks(struct client *client, int most) {
    int64_t now = now_us();
    const struct voice *voice = client->voice;
    while (most-- > 0 && client->chunks_sent < client->chunks && has_room(client, voice->chunk.length)) {
        put(client, &voice->chunk, now--);
        client->chunks_sent++;
    }
    if (client->chunks_sent == client->chunks && has_room(client, voice->ending.length)) {
        put(client, &voice->ending, 0);
        client->streaming = false;
        unpace(client);
    }
}

static void watch(struct client *client, bool wants_write) {
    if (client->wants_write == wants_write)
        return;
    client->wants_write = wants_write;
    struct epoll_event event = {.events = EPOLLIN | (wants_write ? EPOLLOUT : 0), .data.ptr = client};
    epoll_ctl(poller, EPOLL_CTL_MOD, client->fd, &event);
}

/* False when the other side has gone. */
static bool flush(struct client *client) {
    for (;;) {
        while (client->out_sent < client->out_length) {
            ssize_t sent = send(client->fd, client->out + client->out_sent, client->out_length - client->out_sent, MSG_NOSIGNAL);
            if (sent < 0 && errno != EAGAIN)
                return false;
            if (sent < 0) {
                watch(client, true);
                return true;
            }
            client->out_sent += (size_t)sent;
        }
        client->out_length = client->out_sent = 0;
        if (!client->streaming || client->interval)
            break;
        put_chunks(client, client->chunks);
    }
    watch(client, false);
    return true;
}

/* ---- reading */

static int option(const char *model, const char *name, int otherwise) {
    const char *at = strstr(model, name);
    return at ? atoi(at + strlen(name)) : otherwise;
}

static void read_model(const char *body, size_t length, char model[128]) {
    char *at = memmem(body, length, "\"model\"", 7);
    if (at)
        sscanf(at + 7, " : \"%127[^\"]", model);
}

static int count(const char *body, size_t length, const char *needle) {
    const char *end = body + length;
    int found = 0;
    while ((body = memmem(body, (size_t)(end - body), needle, strlen(needle)))) {
        body += strlen(needle);
        found++;
    }
    return found;
}

static bool wants_stream(const char *body, size_t length) {
    const char *at = memmem(body, length, "\"stream\":", 9);
    at = at ? at + 9 + (at[9] == ' ') : body + length;
    return body + length - at > 4 && !memcmp(at, "true", 4);
}

static void answer(struct client *client, const char *body, size_t length) {
    static int calls;
    char model[128] = "";
    read_model(body, length, model);
    bool streams = wants_stream(body, length);
    int tool_steps = option(model, "-tool", 0);
    if (tool_steps && count(body, length, "\"tool_call_id\"") < tool_steps) {
        put(client, streams ? &tool_step : &tool_document, ++calls);
        return;
    }
    if (!streams) {
        put(client, &client->voice->document, now_us());
        return;
    }
    int rate = option(model, "-r", 0);
    client->chunks = option(model, "-n", 100);
    client->chunks_sent = 0;
    client->streaming = true;
    client->interval = rate ? 1000000 / rate : 0;
    put(client, &client->voice->opening, 0);
    if (client->interval) {
        client->due = now_us() + client->interval;
        pace(client);
    }
}

/* Answers the first request when it has come whole; false when there is none. */
static bool take_request(struct client *client) {
    char *end = memmem(client->in, client->in_length, "\r\n\r\n", 4);
    if (!end || client->streaming || !has_room(client, tool_step.length + anthropic.opening.length))
        return false;
    size_t head = (size_t)(end + 4 - client->in), body = 0;
    for (char *line = client->in; line < end; line = (char *)memchr(line, '\n', (size_t)(end + 2 - line)) + 1)
        if (!strncasecmp(line, "content-length:", 15))
            body = strtoul(line + 15, NULL, 10);
    if (client->in_length < head + body)
        return false;
    char *path = client->in + strcspn(client->in, " ");
    client->voice = memmem(path, strcspn(path, "\r"), "/messages", 9) ? &anthropic : &openai;
    answer(client, client->in + head, body);
    client->in_length -= head + body;
    memmove(client->in, client->in + head + body, client->in_length);
    return true;
}

/* False when the other side has gone. */
static bool receive(struct client *client) {
    for (;;) {
        if (client->in_capacity - client->in_length < IN_CAPACITY / 2)
            client->in = realloc(client->in, client->in_capacity *= 2);
        size_t room = client->in_capacity - client->in_length;
        ssize_t got = recv(client->fd, client->in + client->in_length, room - 1, 0);
        if (got <= 0)
            return got < 0 && errno == EAGAIN;
        client->in_length += (size_t)got;
        client->in[client->in_length] = 0;
        if ((size_t)got < room - 1)
            return true;
    }
}

/* ---- the loop */

static void accept_clients(int listener) {
    int fd, one = 1;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        struct client *client = calloc(1, sizeof *client);
        *client = (struct client){.fd = fd, .place = -1, .in_capacity = IN_CAPACITY};
        client->in = malloc(IN_CAPACITY);
        client->out = malloc(OUT_CAPACITY);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = client};
        epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event);
    }
}

static void drop(struct client *client) {
    unpace(client);
    close(client->fd);
    free(client->in);
    free(client->out);
    free(client);
}

static void serve(struct client *client, uint32_t events) {
    bool alive = !(events & (EPOLLIN | EPOLLHUP | EPOLLERR)) || receive(client);
    if (alive && client->wants_write && (events & EPOLLOUT))
        alive = flush(client);
    while (alive && take_request(client))
        alive = client->wants_write || flush(client);
    if (!alive)
        drop(client);
}

/* Sends the chunks that are due. A client that has gone is left to the poller, which tells of it as well. */
static void send_due(void) {
    int64_t now = now_us();
    while (paced_count && paced[0]->due <= now) {
        struct client *client = paced[0];
        client->due += client->interval;
        sink(0);
        put_chunks(client, 1);
        if (!client->wants_write && !flush(client))
            unpace(client);
    }
}

static int listen_on(int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), one = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (void *)&address, size) || listen(listener, 4096) || getsockname(listener, (void *)&address, &size)) {
        perror("upstream");
        exit(1);
    }
    printf("listening on http://127.0.0.1:%d\n", ntohs(address.sin_port));
    fflush(stdout);
    return listener;
}

int main(int argc, char **argv) {
    const char *tool = "hub_call", *arguments = "{\"calls\":[{\"tool\":\"time.now\",\"input\":{}}]}";
    int port = 0;
    for (int letter; (letter = getopt(argc, argv, "p:t:a:")) != -1;) {
        switch (letter) {
        case 'p': port = atoi(optarg); break;
        case 't': tool = optarg; break;
        case 'a': arguments = optarg; break;
        default: fprintf(stderr, "usage: upstream [-p PORT] [-t TOOL] [-a ARGUMENTS]\n"); return 2;
        }
    }
    static struct epoll_event events[MAX_EVENTS];
    write_answers(tool, arguments);
    poller = epoll_create1(0);
    int listener = listen_on(port);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    epoll_ctl(poller, EPOLL_CTL_ADD, listener, &event);
    for (;;) {
        int64_t wait = paced_count ? paced[0]->due - now_us() : 1000000;
        struct timespec timeout = {.tv_nsec = wait < 0 ? 0 : wait % 1000000 * 1000, .tv_sec = wait < 0 ? 0 : wait / 1000000};
        int ready = epoll_pwait2(poller, events, MAX_EVENTS, &timeout, NULL);
        send_due();
        for (int i = 0; i < ready; i++)
            events[i].data.ptr ? serve(events[i].data.ptr, events[i].events) : accept_clients(listener);
    }
}
