/* The usual step of the flight recorder, in C: what Tape and generators do in Python, where nothing is unusual.

   Each function answers False or None where anything is (another kind of batch, states of another kind, a look at what is
   learned, memory to be measured): then the same is done in Python, which is the reference, and prepares the next steps.
   Both write the same bytes of the ring, and keep their counts in it. In a step of 20 ms all caches are cold, and each
   line of Python costs a microsecond there; that is all that this file is for. Without a compiler it is not built.

   How a loop walks over its batches is in walk.c. Numbers lie in a slot as ocrlab/flight/ring_layout.py says. */

#include "quick.h"

#include <math.h>
#include <string.h>
#include <time.h>

enum { RECORD, AGAIN, CHECK, LOSS, LOSS_VALUE, SUMMED, MICRO, EPOCH, WALK, RATE, BEFORE, WHEN, KNOWN, POSITION, TEXT, SIZE };

PyObject *n_base, *n_states, *n_text, *n_walk, *n_position, *n_initialized, *n_item, *n_is_cuda, *n_groups, *n_lr,
    *n_training, *n_grad, *n_indices, *n_closure;
uint32_t crc_table[256];

uint32_t crc32_of(uint32_t crc, const unsigned char *at, int64_t size) {
    crc = ~crc;
    while (size-- > 0) crc = crc_table[(crc ^ *at++) & 255] ^ (crc >> 8);
    return ~crc;
}

static int64_t *slot_of(Quick *self, int64_t record) {
    return (int64_t *)(self->page + self->first + (record - 1) % self->slots * self->slot_bytes);
}

static unsigned char *payload_of(Quick *self, int64_t record, int64_t size) {
    if (size <= self->slot_bytes - SLOT) return (unsigned char *)slot_of(self, record) + SLOT;
    return self->page + self->large_at + (record - 1) % self->slots * self->room;
}

static int64_t *counts(Quick *self) { return (int64_t *)(self->page + self->count_at); } /* records, those with a sum */

void quick_say(Quick *self, int phase) {
    *(volatile unsigned char *)(self->page + self->phase_at) = (unsigned char)phase;
}

/* Return a new reference to an attribute, NULL without an error where there is none. */
static PyObject *attribute(PyObject *of, PyObject *name) {
    PyObject *found = PyObject_GetAttr(of, name);
    if (!found) PyErr_Clear();
    return found;
}

/* Tell whether a batch carries no names: a tensor, or tensors in a tuple or list. */
static int nameless(Quick *self, PyObject *batch) {
    PyObject *tensor = self->tensor;
    if ((PyObject *)Py_TYPE(batch) == tensor) return 1;
    if (!PyTuple_CheckExact(batch) && !PyList_CheckExact(batch)) return 0;
    PyObject **parts = PySequence_Fast_ITEMS(batch);
    for (Py_ssize_t i = PySequence_Fast_GET_SIZE(batch); i-- > 0;)
        if ((PyObject *)Py_TYPE(parts[i]) != tensor) return 0;
    return 1;
}

static int whole(PyObject *of, PyObject *name, int64_t *value) {
    PyObject *found = attribute(of, name);
    if (!found) return 0;
    int fine = PyLong_CheckExact(found);
    if (fine) *value = PyLong_AsLongLong(found);
    Py_DECREF(found);
    if (fine && *value == -1 && PyErr_Occurred()) PyErr_Clear(), fine = 0;
    return fine;
}

/* Tell whether the states before loading are those of now: the batch was loaded here, and nothing was drawn. */
static int undrawn(PyObject *loaded, PyObject *now) {
    if (loaded == now) return 1;
    PyObject *a = PyTuple_GET_ITEM(loaded, 1), *b = PyTuple_GET_ITEM(now, 1);
    return PyTuple_GET_ITEM(loaded, 0) == PyTuple_GET_ITEM(now, 0) && PyBytes_GET_SIZE(a) == PyBytes_GET_SIZE(b) &&
           !memcmp(PyBytes_AS_STRING(a), PyBytes_AS_STRING(b), PyBytes_GET_SIZE(b));
}

static int is_of(const Side *side, PyObject *states) {
    return side->still == PyTuple_GET_ITEM(states, 0) && side->more == PyBytes_GET_SIZE(PyTuple_GET_ITEM(states, 1));
}

/* Return how a record holds the states before loading, NULL of those that nobody has told. */
static const Side *side_of(Quick *self, PyObject *loaded) {
    if (is_of(&self->now, loaded)) return &self->now;
    if (is_of(&self->past, loaded)) return &self->past;
    for (const Side *side = self->sides; side < self->sides + self->known; side++)
        if (is_of(side, loaded)) return side;
    return NULL;
}

/* Return the number of a block that has the words of a generator, which is filled where there is none; 0 where there can be
   none. */
static int64_t block_with(Quick *self, PyObject *words) {
    int64_t *filled = (int64_t *)(self->page + self->block_at);
    for (int i = self->filled; i-- > 0;)
        if (self->told[i].words == words) return self->told[i].number;
    if (self->filled == FRESH || PyBytes_GET_SIZE(words) != WORDS) return 0;
    if (*filled < 0 || *filled == INT64_MAX) return 0; /* the program has written into it */
    const int64_t number = *filled + 1;
    unsigned char *at = self->page + self->blocks_at + number % self->blocks * BLOCK_BYTES, *text = (unsigned char *)PyBytes_AS_STRING(words);
    const uint32_t about[] = {WORDS, crc32_of(0, text, WORDS)};
    memcpy(at, &number, sizeof number);
    memcpy(at + sizeof number, about, sizeof about);
    memcpy(at + BLOCK, text, WORDS);
    self->told[self->filled++] = (Block){Py_NewRef(words), number};
    return *filled = number;
}

/* Return the bytes by which a record holds states like those of now, whose generators may have gone on; NULL of others. */
static PyObject *raw_of(Quick *self, PyObject *still) {
    PyObject *old = self->now.still, *name, *state, *old_name, *was;
    if (!PyDict_CheckExact(still) || !PyDict_CheckExact(old) || PyDict_GET_SIZE(still) != PyDict_GET_SIZE(old)) return NULL;
    PyObject *made = PyBytes_FromStringAndSize(PyBytes_AS_STRING(self->now.raw), PyBytes_GET_SIZE(self->now.raw));
    if (!made) return NULL;
    char *at = PyBytes_AS_STRING(made) + 1, *end = at - 1 + PyBytes_GET_SIZE(made);
    Py_ssize_t left = PyDict_GET_SIZE(still), i = 0, j = 0;
    while (PyDict_Next(still, &i, &name, &state) && PyDict_Next(old, &j, &old_name, &was)) {
        enum { STATE = 12 }; /* the number of its block, and the bytes of its rest */
        int64_t block;
        uint32_t length;
        if (end - at < 1 || end - at < 1 + (unsigned char)*at + STATE) goto other;
        if (name != old_name && PyObject_RichCompareBool(name, old_name, Py_EQ) != 1) goto other;
        at += 1 + (unsigned char)*at + STATE;
        memcpy(&block, at - STATE, sizeof block);
        memcpy(&length, at - 4, sizeof length);
        const Py_ssize_t size = (Py_ssize_t)length - (--left ? 0 : self->now.more);
        if (size < 0 || end - at < size) goto other;
        if (state != was) {
            if (block < 1 || !PyTuple_CheckExact(state) || PyTuple_GET_SIZE(state) != 2 || !PyTuple_CheckExact(was)) goto other;
            PyObject *words = PyTuple_GET_ITEM(state, 0), *rest = PyTuple_GET_ITEM(state, 1);
            if (!PyBytes_CheckExact(words) || !PyBytes_CheckExact(rest) || PyBytes_GET_SIZE(rest) != size) goto other;
            if (words != PyTuple_GET_ITEM(was, 0) && !(block = block_with(self, words))) goto other;
            memcpy(at - STATE, &block, sizeof block);
            memcpy(at, PyBytes_AS_STRING(rest), size);
        }
        at += size;
    }
    if (!left && at == end) return made;
other:
    Py_DECREF(made);
    return NULL;
}

/* Know how a record holds these states of now, also where generators have gone on; tells whether it is known. */
static int hold(Quick *self, PyObject *still) {
    if (still == self->now.still) return 1;
    Side last = self->past;
    if (still != last.still) {
        PyObject *made = raw_of(self, still);
        PyErr_Clear();
        if (!made) return 0;
        last = (Side){Py_NewRef(still), made, self->now.more};
        Py_XDECREF(self->past.still);
        Py_XDECREF(self->past.raw);
    }
    self->past = self->now;
    self->now = last;
    return 1;
}

static unsigned char *put(unsigned char *to, PyObject *raw) {
    memcpy(to, PyBytes_AS_STRING(raw), PyBytes_GET_SIZE(raw));
    return to + PyBytes_GET_SIZE(raw);
}

static void sum(Quick *self) { /* the checksums of the records that have none yet */
    int64_t *held = counts(self);
    for (int64_t record = held[0] - self->together + 1; record <= held[0]; record++) {
        int64_t *slot = slot_of(self, record);
        if (record <= held[1] || slot[SIZE] < 0 || slot[SIZE] > self->room) continue; /* who knows what wrote into it */
        uint32_t crc = crc32_of(0, (unsigned char *)(slot + SUMMED), SLOT - 8 * SUMMED);
        slot[CHECK] = crc32_of(crc, payload_of(self, record, slot[SIZE]), slot[SIZE]);
    }
    held[1] = held[0];
}

/* Return the largest learning rate of an optimiser's first `most` groups; NAN where it is not plain floats. */
static double rate_of(PyObject *optimizer, Py_ssize_t most) {
    double rate = NAN;
    PyObject *groups = attribute(optimizer, n_groups);
    const Py_ssize_t there = groups && PyList_CheckExact(groups) ? PyList_GET_SIZE(groups) : 0;
    for (Py_ssize_t i = 0; i < there && i < most; i++) {
        PyObject *group = PyList_GET_ITEM(groups, i), *found = NULL;
        if (PyDict_CheckExact(group)) found = PyDict_GetItemWithError(group, n_lr);
        PyErr_Clear();
        if (!found || !PyFloat_CheckExact(found) || isnan(PyFloat_AS_DOUBLE(found))) {
            rate = NAN;
            break;
        }
        if (!(PyFloat_AS_DOUBLE(found) <= rate)) rate = PyFloat_AS_DOUBLE(found);
    }
    Py_XDECREF(groups);
    return rate;
}

/* Have the memory measured again; tells whether steps may be usual ones still. */
static int measured(Quick *self) {
    PyObject *found = PyObject_CallNoArgs(self->measure);
    int fine = found && self->page && self->ready && PyTuple_CheckExact(found) && PyTuple_GET_SIZE(found) == 2 &&
               PyBytes_CheckExact(PyTuple_GET_ITEM(found, 0)) && PyFloat_CheckExact(PyTuple_GET_ITEM(found, 1));
    if (fine) {
        Py_XSETREF(self->head, Py_NewRef(PyTuple_GET_ITEM(found, 0)));
        self->until = PyFloat_AS_DOUBLE(PyTuple_GET_ITEM(found, 1));
    }
    Py_XDECREF(found);
    PyErr_Clear();
    return fine;
}

/* Write the record of a usual micro-batch, whose learning rate the optimiser says, None of no optimiser; tells whether it was
   one. */
int quick_write(Quick *self, int64_t number, int64_t micro, int64_t epoch, PyObject *optimizer, const Told *told, PyObject *batch) {
    if (!self->page || !self->ready) return 0;
    struct timespec clock;
    clock_gettime(CLOCK_REALTIME, &clock);
    double now = clock.tv_sec + 1e-9 * clock.tv_nsec;
    if (micro >= self->due || told->position < 0 || (self->learns && told->walk != self->walk)) return 0;
    if ((now > self->until || now < self->until - 1.0) && !measured(self)) return 0;
    const double rate = optimizer == Py_None ? 0.0 : rate_of(optimizer, 1);
    if (isnan(rate) || PyDict_GetItemWithError(self->cuda, n_initialized) != Py_False) return 0;
    PyObject *states = marks_now(self->marks), *base = told->base;
    if (!self->page || !self->ready) return 0; /* an attribute may run anything */
    PyObject *loaded = told->states;
    if (!states || !PyTuple_CheckExact(loaded) || PyTuple_GET_SIZE(loaded) != 2) return 0;
    if (!PyBytes_CheckExact(PyTuple_GET_ITEM(loaded, 1))) return 0;
    if (!side_of(self, loaded) && !hold(self, PyTuple_GET_ITEM(loaded, 0))) return 0;
    if (!hold(self, PyTuple_GET_ITEM(states, 0)) || !is_of(&self->now, states)) return 0;
    const Side *side = NULL;
    if (!undrawn(loaded, states) && !(side = side_of(self, loaded))) return 0;
    PyObject *indices = base != self->walks && PyDict_CheckExact(base) ? PyDict_GetItemWithError(base, n_indices) : NULL;
    Py_ssize_t length = 0;
    const char *text = PyUnicode_CheckExact(told->text) ? PyUnicode_AsUTF8AndSize(told->text, &length) : NULL;
    PyErr_Clear();
    if (!length || !text || (base == self->walks && !nameless(self, batch))) return 0;
    if (self->learns && (self->drawn == MANY || (indices && !PyUnicode_CheckExact(indices)))) return 0;
    PyObject *moving = PyTuple_GET_ITEM(states, 1);
    const int64_t texts = PyBytes_GET_SIZE(self->head) + length + 1;
    const int64_t size = texts + PyBytes_GET_SIZE(self->now.raw) + PyBytes_GET_SIZE(moving) +
                         (side ? PyBytes_GET_SIZE(side->raw) + side->more : 0);
    int64_t *held = counts(self), record = held[0] + 1, *slot;
    if (size > self->room || record < 1 || record == INT64_MAX) return 0; /* the program has written into it */
    slot = slot_of(self, record);
    const int64_t *last = held[0] ? slot_of(self, held[0]) : NULL;
    const int before = last && last[LOSS] && self->slots > 1;
    const double loss = before ? ((const double *)last)[LOSS_VALUE] : 0.0;
    __atomic_store_n(slot + RECORD, record, __ATOMIC_SEQ_CST);
    held[0] = record;
    slot[CHECK] = slot[LOSS] = 0;
    slot[SUMMED] = number, slot[MICRO] = micro, slot[EPOCH] = epoch, slot[WALK] = told->walk;
    ((double *)slot)[RATE] = rate, ((double *)slot)[BEFORE] = loss, ((double *)slot)[WHEN] = now;
    slot[KNOWN] = (optimizer != Py_None) | before << 1 | !side << 2, slot[POSITION] = told->position, slot[TEXT] = texts, slot[SIZE] = size;
    unsigned char *to = payload_of(self, record, size);
    to = put(to, self->head);
    memcpy(to, text, length), to += length;
    *to++ = '}';
    to = put(put(to, self->now.raw), moving);
    if (side) put(put(to, side->raw), PyTuple_GET_ITEM(loaded, 1));
    __atomic_store_n(slot + AGAIN, record, __ATOMIC_SEQ_CST);
    if (record - held[1] >= self->together) sum(self);
    self->page[self->phase_at + 1] = 0;
    quick_say(self, self->forward);
    self->stepped = 0, self->in_step = 1;
    if (self->learns) {
        self->batches++, self->noted = 1;
        if (indices) self->indices[self->drawn++] = Py_NewRef(indices);
    }
    return 1;
}

/* Do the same for a batch of which a Loaded tells. */
int quick_told(Quick *self, int64_t number, int64_t micro, int64_t epoch, PyObject *optimizer, PyObject *told, PyObject *batch) {
    Told known;
    if (!self->page || !self->ready || !whole(told, n_walk, &known.walk) || !whole(told, n_position, &known.position)) return 0;
    known.base = attribute(told, n_base);
    known.states = attribute(told, n_states);
    known.text = attribute(told, n_text);
    int usual = known.base && known.states && known.text && quick_write(self, number, micro, epoch, optimizer, &known, batch);
    Py_XDECREF(known.base);
    Py_XDECREF(known.states);
    Py_XDECREF(known.text);
    return usual;
}

/* begin(number, micro, epoch, optimizer, told, batch): write the record of a usual micro-batch; tells whether it was one */
PyObject *quick_begin(Quick *self, PyObject *const *args, Py_ssize_t count) {
    if (count != 6) Py_RETURN_FALSE;
    int64_t number = PyLong_AsLongLong(args[0]), micro = PyLong_AsLongLong(args[1]), epoch = PyLong_AsLongLong(args[2]);
    if (PyErr_Occurred()) return NULL;
    return PyBool_FromLong(quick_told(self, number, micro, epoch, args[3], args[4], args[5]));
}

/* loss(value): note the loss of a usual step, on the host, before its backward; tells whether it was one */
PyObject *quick_loss(Quick *self, PyObject *value) {
    if (!self->page || !self->ready || (PyObject *)Py_TYPE(value) != self->tensor) Py_RETURN_FALSE;
    if (self->learns && self->losses == MANY) Py_RETURN_FALSE;
    PyObject *device = attribute(value, n_is_cuda), *item = NULL;
    if (device == Py_False) item = PyObject_CallMethodNoArgs(value, n_item);
    Py_XDECREF(device);
    PyErr_Clear(); /* of a tensor with more than one value, say */
    double loss = item && PyFloat_CheckExact(item) ? PyFloat_AS_DOUBLE(item) : NAN;
    Py_XDECREF(item);
    if (!isfinite(loss)) Py_RETURN_FALSE;
    if (!self->page || counts(self)[0] < 1) Py_RETURN_FALSE;
    int64_t *slot = slot_of(self, counts(self)[0]);
    ((double *)slot)[LOSS_VALUE] = loss;
    slot[LOSS] = 1;
    if (self->learns) self->loss[self->losses++] = loss, self->noted = 1;
    self->page[self->phase_at + 1] = 0; /* the stage that was entered last is the loss's */
    quick_say(self, self->backward);
    self->in_step = 0;
    Py_RETURN_TRUE;
}

/* Note the rate and the gradients of an optimiser's usual step; tells whether it is one. */
static int notes(Quick *self, PyObject *optimizer) {
    if (!self->page || !self->ready || self->steps == MANY) return 0;
    if (!self->learns) return 1;
    if (optimizer != self->optimizer) return 0;
    double rate = rate_of(optimizer, PY_SSIZE_T_MAX);
    if (isnan(rate) || !self->ready) return 0; /* an attribute may run anything */
    PyObject *mode = self->model == Py_None ? Py_NewRef(Py_True) : attribute(self->model, n_training);
    PyObject *gradient = self->witness ? attribute(self->witness, n_grad) : NULL;
    int usual = mode == Py_True && gradient && gradient != Py_None;
    Py_XDECREF(mode);
    Py_XDECREF(gradient);
    if (!usual || !self->page || !self->ready || self->steps == MANY) return 0;
    self->rate[self->steps++] = rate, self->noted = 1;
    return 1;
}

/* Tell whether an optimiser is called with a closure; -1 where it is called in another way. */
static int closure_of(PyObject *given, PyObject *named) {
    if (!PyTuple_CheckExact(given) || !PyDict_CheckExact(named)) return -1;
    const Py_ssize_t more = PyTuple_GET_SIZE(given) - 1 + PyDict_GET_SIZE(named);
    if (more <= 0) return 0;
    PyObject *closure = PyTuple_GET_SIZE(given) == 2 ? PyTuple_GET_ITEM(given, 1) : PyDict_GetItemWithError(named, n_closure);
    PyErr_Clear();
    return more == 1 && closure && closure != Py_None ? 1 : -1;
}

/* stepping(optimizer, given, named): the hook before an optimiser's step */
PyObject *quick_stepping(Quick *self, PyObject *const *args, Py_ssize_t count) {
    const int closure = count == 3 ? closure_of(args[1], args[2]) : -1;
    self->closing = 0; /* of one that has raised */
    if (closure > 0 && self->page && self->ready && (!self->learns || args[0] == self->optimizer)) {
        self->stepped = self->closing = 1; /* the forward is still to come */
        Py_RETURN_NONE;
    }
    if (!closure && notes(self, args[0])) {
        quick_say(self, self->optimiser);
        self->stepped = 1, self->in_step = 0;
        Py_RETURN_NONE;
    }
    if (!self->otherwise) Py_RETURN_NONE;
    return PyObject_Vectorcall(self->otherwise, args, count, NULL);
}

/* behind(optimizer, given, named): the hook behind an optimiser's step, where it is called with closures */
PyObject *quick_stepped(Quick *self, PyObject *const *args, Py_ssize_t count) {
    if (!self->closing || count != 3) Py_RETURN_NONE;
    self->closing = 0;
    if (notes(self, args[0]) || !self->behind) Py_RETURN_NONE;
    return PyObject_Vectorcall(self->behind, args, count, NULL);
}

/* nameless(batch): tell whether a batch carries no names */
PyObject *quick_nameless(Quick *self, PyObject *batch) { return PyBool_FromLong(self->tensor && nameless(self, batch)); }

/* wait(): the next batch is waited for; tells whether there is nothing else to do about it */
PyObject *quick_wait(Quick *self, PyObject *unused) {
    if (!self->page || !self->ready) Py_RETURN_FALSE;
    quick_say(self, self->data);
    self->in_step = 0;
    Py_RETURN_TRUE;
}

/* A usual micro-batch is over, and the next one waited for or not; returns whether an optimiser has stepped, -1 where this was
   no usual one. */
int quick_ends(Quick *self, int waits) {
    if (!self->page || !self->ready) return -1;
    if (waits) quick_say(self, self->data), self->in_step = 0;
    return self->stepped;
}
