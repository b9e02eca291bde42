/* A load generator for streaming HTTP answers: one thread, epoll, any number of connections, each in a closed loop or,
   with -q, so many requests a second from all of them together, whatever the answers take.

     load -p PORT [-u PATH] [-c CONNECTIONS] [-r OPENED_PER_SECOND] [-q REQUESTS_PER_SECOND] [-w WARMUP] [-o] [-d SECONDS]
          -b BODY [-x CHUNKS] [-b BODY -x CHUNKS]... [-e LAST_WORDS] [-H HEADER]... [-P NAME=PID]...

   Every connection posts the bodies in turn, each answer read to its end before the next request. With -q the time of
   a request counts from when it was due: one that has to wait for a free connection is not shown as fast. "%ID%" in a body
   becomes 16 digits that no other request has. After WARMUP seconds (-o: or when every connection has begun to get its
   answer) it prints "measuring", counts for SECONDS (up to ten times that until there are CONNECTIONS answers, unless -o)
   and prints one JSON object:
     requests, failed (refused, cut or not 2xx), incomplete (not exactly CHUNKS of the stamps "@" + 16 digits that
     upstream.c writes, or LAST_WORDS, "[DONE]" unless said, not among the last 128 bytes), chunks, frames, open
     (answers under way at the end), and in microseconds first_frame, first_chunk, response (since the request) and
     delay (since the chunk's stamp); load_cpu, and for each NAME the CPU seconds that the process PID used and its resident memory at the end.
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

#include "measure.h"
#include "request.h"

enum { MAX_EVENTS = 1024, MAX_PROCESSES = 64, HEAD_CAPACITY = 8192, TAIL = 128 };

struct process {
    const char *name;
    int pid;
    double cpu;
};

enum state { CONNECTING, IDLE, SENDING, READING_HEAD, READING_BODY };
enum framing { BY_LENGTH, BY_CHUNKS, BY_CLOSE };
enum chunk_state { SIZE, DATA, AFTER_DATA, TRAILER };

struct connection {
    int fd, next; /* next: the request that is sent now or next */
    struct connection *next_idle;
    enum state state;
    int64_t started;
    char *out;
    size_t out_length, sent;
    /* the answer */
    char head[HEAD_CAPACITY], tail[TAIL];
    size_t head_length, left;
    int status;
    enum framing framing;
    enum chunk_state chunk_state;
    bool closes, line_empty, flowed; /* flowed: an answer has begun on this connection */
    int stamp_digits; /* digits of a stamp read so far plus one, 0 = outside a stamp */
    int64_t stamp;
    long chunks, frames;
};

static struct process processes[MAX_PROCESSES];
static int process_count, poller;
static struct sockaddr_in address = {.sin_family = AF_INET};
static bool measuring, early;
static int flowing; /* connections on which an answer has begun */
static const char *last_words = "[DONE]";
static unsigned request_number;
static double requests_per_second; /* 0: closed loops */
static int64_t due;
static struct connection *idle;
static uintmax_t answered, failed, incomplete, chunks, frames, bytes;
static struct histogram first_frame, first_chunk, response, delay;

/* ---- sending */

static void watch(struct connection *c, uint32_t events, int operation) {
    struct epoll_event event = {.events = events, .data.ptr = c};
    epoll_ctl(poller, operation, c->fd, &event);
}

static void open_connection(struct connection *c) {
    int one = 1;
    if (c->fd >= 0)
        close(c->fd);
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    connect(c->fd, (void *)&address, sizeof address);
    c->state = CONNECTING;
    watch(c, EPOLLOUT, EPOLL_CTL_ADD);
}

static void fail(struct connection *c) {
    failed += measuring;
    open_connection(c);
}

static void send_request(struct connection *c) {
    while (c->sent < c->out_length) {
        ssize_t sent = send(c->fd, c->out + c->sent, c->out_length - c->sent, MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN)
            return fail(c);
        if (sent < 0)
            return watch(c, EPOLLIN | EPOLLOUT, EPOLL_CTL_MOD);
        c->sent += (size_t)sent;
    }
    c->state = READING_HEAD;
    watch(c, EPOLLIN, EPOLL_CTL_MOD);
}

static void start_request(struct connection *c) {
    const struct request *request = &requests[c->next];
    char id[STAMP_DIGITS + 1];
    snprintf(id, sizeof id, "%06u%010u", (unsigned)getpid() % 1000000, ++request_number);
    if (!c->out)
        c->out = malloc(longest);
    c->out_length = write_request(c->out, request, id);
    c->started = now_us();
    c->state = SENDING;
    c->sent = c->head_length = c->left = 0;
    c->chunks = c->frames = c->stamp_digits = 0;
    c->line_empty = true;
    memset(c->tail, 0, TAIL);
    send_request(c);
}

/* Starts the next request at once, or lets the connection wait for its turn. */
static void next_request(struct connection *c) {
    if (!requests_per_second)
        return start_request(c);
    c->state = IDLE;
    watch(c, EPOLLIN, EPOLL_CTL_MOD);
    c->next_idle = idle;
    idle = c;
}

/* Starts the requests that are due, as far as connections are free. */
static void start_due(int64_t now) {
    for (struct connection *c; requests_per_second && due <= now && (c = idle); due += (int64_t)(1e6 / requests_per_second)) {
        idle = c->next_idle;
        start_request(c);
        c->started = due;
    }
}

/* ---- reading an answer */

static void end_stamp(struct connection *c, int64_t now) {
    if (++c->chunks == 1 && measuring)
        histogram_add(&first_chunk, now - c->started);
    chunks += measuring;
    if (measuring)
        histogram_add(&delay, now - c->stamp);
}

static void end_line(struct connection *c, int64_t now) {
    if (c->line_empty) {
        frames += measuring;
        if (++c->frames == 1 && measuring)
            histogram_add(&first_frame, now - c->started);
        flowing += !c->flowed;
        c->flowed = true;
    }
    c->line_empty = true;
}

/* Looks for stamps and blank lines in a piece of the body; both may be cut anywhere. */
static void scan(struct connection *c, const char *at, const char *end, int64_t now) {
    while (at < end) {
        if (c->stamp_digits && *at >= '0' && *at <= '9') {
            c->stamp = c->stamp * 10 + (*at++ - '0');
            if (c->stamp_digits++ == STAMP_DIGITS) {
                c->stamp_digits = 0;
                end_stamp(c, now);
            }
            continue;
        }
        c->stamp_digits = 0;
        const char *line_end = memchr(at, '\n', (size_t)(end - at));
        const char *mark = memchr(at, '@', (size_t)((line_end ? line_end : end) - at));
        c->line_empty = c->line_empty && (line_end == at || (line_end == at + 1 && *at == '\r'));
        if (mark) {
            c->stamp_digits = 1;
            c->stamp = 0;
            at = mark + 1;
        } else {
            if (line_end)
                end_line(c, now);
            at = line_end ? line_end + 1 : end;
        }
    }
}

static void take_body(struct connection *c, const char *at, size_t length, int64_t now) {
    bytes += measuring ? length : 0;
    scan(c, at, at + length, now);
    size_t kept = length < TAIL ? TAIL - length : 0;
    memmove(c->tail, c->tail + TAIL - kept, kept);
    memcpy(c->tail + kept, at + length - (TAIL - kept), TAIL - kept);
}

/* Takes off HTTP's chunk framing; true at the answer's end. */
static bool take_chunked(struct connection *c, const char *at, const char *end, int64_t now) {
    while (at < end) {
        if (c->chunk_state == DATA) {
            size_t length = (size_t)(end - at) < c->left ? (size_t)(end - at) : c->left;
            take_body(c, at, length, now);
            at += length;
            if (!(c->left -= length))
                c->chunk_state = AFTER_DATA;
            continue;
        }
        char letter = *at++;
        if (c->chunk_state == SIZE && letter != '\n' && letter != '\r')
            c->left = c->left * 16 + (size_t)(letter <= '9' ? letter - '0' : (letter | 32) - 'a' + 10);
        if (letter != '\n')
            continue;
        if (c->chunk_state == TRAILER)
            return true;
        c->chunk_state = c->chunk_state == AFTER_DATA ? SIZE : c->left ? DATA : TRAILER;
    }
    return false;
}

static bool take_answer(struct connection *c, const char *at, size_t length, int64_t now) {
    if (c->framing == BY_CHUNKS)
        return take_chunked(c, at, at + length, now);
    take_body(c, at, length, now);
    return c->framing == BY_LENGTH && !(c->left -= length < c->left ? length : c->left);
}

static void read_head(struct connection *c, const char *end) {
    c->status = atoi(c->head + sizeof "HTTP/1.1");
    c->framing = BY_CLOSE;
    c->closes = false;
    c->chunk_state = SIZE;
    for (const char *line = c->head; line < end; line = strchr(line, '\n') + 1) {
        if (!strncasecmp(line, "content-length:", 15)) {
            c->framing = BY_LENGTH;
            c->left = strtoul(line + 15, NULL, 10);
        } else if (!strncasecmp(line, "transfer-encoding: chunked", 26)) {
            c->framing = BY_CHUNKS;
        } else if (!strncasecmp(line, "connection: close", 17)) {
            c->closes = true;
        }
    }
}

static void finish_answer(struct connection *c, int64_t now) {
    long expected = requests[c->next].chunks;
    bool whole = memmem(c->tail, TAIL, last_words, strlen(last_words)) && (expected < 0 || c->chunks == expected);
    if (measuring) {
        answered++;
        histogram_add(&response, now - c->started);
        failed += c->status / 100 != 2;
        incomplete += c->status / 100 == 2 && !whole;
    }
    c->next = (c->next + 1) % request_count;
    if (c->closes || c->framing == BY_CLOSE)
        open_connection(c);
    else
        next_request(c);
}

/* Adds a read to the head; the part of the read that is body already, or NULL while the head goes on. */
static const char *take_head(struct connection *c, const char *data, size_t length) {
    size_t before = c->head_length, room = HEAD_CAPACITY - 1 - before, taken = length < room ? length : room;
    memcpy(c->head + before, data, taken);
    c->head[c->head_length += taken] = 0;
    char *end = strstr(c->head, "\r\n\r\n");
    if (!end)
        return NULL;
    read_head(c, end);
    c->state = READING_BODY;
    return data + (end + 4 - c->head) - before;
}

static void receive(struct connection *c) {
    static char buffer[1 << 18];
    for (;;) {
        ssize_t got = recv(c->fd, buffer, sizeof buffer, 0);
        if (got < 0 && errno == EAGAIN)
            return;
        int64_t now = now_us();
        if (got <= 0) {
            bool whole = got == 0 && c->state == READING_BODY && c->framing == BY_CLOSE;
            return whole ? finish_answer(c, now) : fail(c);
        }
        const char *body = c->state == READING_BODY ? buffer : take_head(c, buffer, (size_t)got);
        if (body && take_answer(c, body, (size_t)(buffer + got - body), now))
            return finish_answer(c, now);
        if (got < (ssize_t)sizeof buffer)
            return;
    }
}

static void serve(struct connection *c, uint32_t events) {
    if (c->state == CONNECTING) {
        if (!(events & (EPOLLERR | EPOLLHUP)))
            return next_request(c);
        usleep(1000); /* nobody there: don't spin */
        return fail(c);
    }
    if (c->state == SENDING && (events & EPOLLOUT))
        return send_request(c);
    if (events & (EPOLLIN | EPOLLHUP | EPOLLERR))
        receive(c);
}

/* ---- the report */

static void report(double seconds, double own_cpu, long open_answers) {
    printf("{\"seconds\": %.3f, \"requests\": %ju, \"failed\": %ju, \"incomplete\": %ju", seconds, answered, failed, incomplete);
    printf(", \"chunks\": %ju, \"frames\": %ju, \"bytes\": %ju, \"open\": %ld, \"load_cpu\": %.3f", chunks, frames, bytes,
           open_answers, own_cpu);
    histogram_print("first_frame", &first_frame);
    histogram_print("first_chunk", &first_chunk);
    histogram_print("response", &response);
    histogram_print("delay", &delay);
    printf(", \"processes\": {");
    for (int i = 0; i < process_count; i++)
        printf("%s\"%s\": {\"cpu\": %.3f, \"rss_kib\": %ld}", i ? ", " : "", processes[i].name,
               process_cpu(processes[i].pid) - processes[i].cpu, process_rss(processes[i].pid));
    printf("}}\n");
}

/* ---- the loop */

static void poll_once(void) {
    static struct epoll_event events[MAX_EVENTS];
    int64_t now = now_us(), left = 1000;
    start_due(now);
    if (requests_per_second && idle && due - now < left)
        left = due - now;
    struct timespec timeout = {.tv_nsec = (left < 0 ? 0 : left) * 1000};
    int ready = epoll_pwait2(poller, events, MAX_EVENTS, &timeout, NULL);
    for (int i = 0; i < ready; i++)
        serve(events[i].data.ptr, events[i].events);
}

static void run(int connections, int opened_per_second, double warmup, double seconds) {
    struct connection *all = calloc((size_t)connections, sizeof *all);
    int64_t begun = now_us(), from = begun + (int64_t)(warmup * 1e6), until = INT64_MAX, late = INT64_MAX;
    double own_cpu = 0;
    long opened = 0, open_answers = 0;
    due = begun;
    for (int64_t now; (now = now_us()) < until || (!early && answered < (uintmax_t)connections && now < late); poll_once()) {
        long wanted = opened_per_second ? (now - begun) * opened_per_second / 1000000 + 1 : connections;
        for (; opened < wanted && opened < connections; opened++) {
            all[opened].fd = -1;
            open_connection(&all[opened]);
        }
        if (measuring || (now < from && !(early && flowing == connections)))
            continue;
        measuring = true;
        until = now + (int64_t)(seconds * 1e6);
        late = now + (int64_t)(seconds * 10e6);
        puts("measuring");
        fflush(stdout);
        own_cpu = process_cpu(getpid());
        for (int i = 0; i < process_count; i++)
            processes[i].cpu = process_cpu(processes[i].pid);
    }
    for (long i = 0; i < opened; i++)
        open_answers += all[i].state == READING_BODY && all[i].frames > 0;
    report(seconds + (double)(now_us() - until) / 1e6, process_cpu(getpid()) - own_cpu, open_answers);
}

static void add_process(char *option) {
    char *equals = strchr(option, '=');
    if (!equals || process_count == MAX_PROCESSES)
        exit(2);
    *equals = 0;
    processes[process_count++] = (struct process){.name = option, .pid = atoi(equals + 1)};
}

int main(int argc, char **argv) {
    int connections = 1, opened_per_second = 0;
    double warmup = 1, seconds = 3;
    for (int letter; (letter = getopt(argc, argv, "p:u:c:r:q:w:d:b:x:e:H:P:o")) != -1;) {
        switch (letter) {
        case 'p': address.sin_port = htons((uint16_t)atoi(optarg)); break;
        case 'u': path = optarg; break;
        case 'c': connections = atoi(optarg); break;
        case 'r': opened_per_second = atoi(optarg); break;
        case 'q': requests_per_second = atof(optarg); break;
        case 'w': warmup = atof(optarg); break;
        case 'd': seconds = atof(optarg); break;
        case 'b': add_request(optarg); break;
        case 'x': requests[request_count ? request_count - 1 : 0].chunks = atol(optarg); break;
        case 'e': last_words = optarg; break;
        case 'H': add_header(optarg); break;
        case 'o': early = true; break;
        case 'P': add_process(optarg); break;
        default: return 2;
        }
    }
    signal(SIGPIPE, SIG_IGN);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    poller = epoll_create1(0);
    run(connections, opened_per_second, warmup, seconds);
}
