/* The page of a loader worker, in C: what Watched and Page do in Python for each batch and sample, where nothing is unusual.

   `begin` answers None where anything is (an index that is no whole number, a draw of NumPy or Python, states that do not
   fit): then the same is done in Python, which is the reference, and tells `wrote` what lies there now. Both write the same
   bytes. Numbers lie in a page as ocrlab/flight/ring_worker.py says. */

#include "quick.h"

#include <string.h>
#include <structmember.h> /* T_BOOL, which is Py_T_BOOL from Python 3.12 on */
#include <time.h>
#include <unistd.h>

enum { LONGEST = 200, START = 16, LENGTH = 4, WHEN = 8, COUNT = 2 }; /* of a name; bytes of a batch's head and a length, of a sample's time and length */

enum { MAP, STREAM, KINDS }; /* batches by their indices, or by where in a stream they begin */

PyObject *n_samples, *n_first, *n_told, *n_fresh, *n_load, *n_refuse;

/* What a side of the page holds of the states that stay. */
typedef struct {
    PyObject *still;
    uint32_t size, check;
} Written;

typedef struct {
    PyObject_HEAD
    Py_buffer view;
    unsigned char *page; /* NULL once it is closed */
    int64_t sample_at, sample_bytes, batch_at, batch_bytes;
    Marks *marks;
    PyTypeObject *loaded;           /* the class of what is known of a batch */
    PyObject *quoted;               /* makes JSON of a text */
    PyObject *order[KINDS], *prefix[KINDS]; /* what all batches have in common: as a dict, and as JSON up to what differs */
    PyObject *names, *held; /* gives the name of an index, None for the number itself; the list it takes them from, or None */
    PyObject *watched, *dataset; /* a weak reference to what this is the notes of, and its data set */
    pid_t owner;
    Py_ssize_t at; /* in a batch, the sample that could not be loaded */
    char failed;  /* a batch has failed, and stays */
    Written written[2];
} Notes;

/* A text that grows. */
typedef struct {
    char *at;
    size_t size, room;
    int lost; /* there was no memory for it */
} Text;

static void add(Text *text, const char *more, size_t size) {
    if (text->size + size > text->room) {
        const size_t room = 2 * (text->size + size) + 256;
        char *moved = text->lost ? NULL : PyMem_Realloc(text->at, room);
        if (!moved) {
            text->lost = 1;
            return;
        }
        text->at = moved, text->room = room;
    }
    memcpy(text->at + text->size, more, size);
    text->size += size;
}

static void add_text(Text *text, PyObject *more) {
    Py_ssize_t size;
    const char *raw = more && PyUnicode_CheckExact(more) ? PyUnicode_AsUTF8AndSize(more, &size) : NULL;
    if (raw) add(text, raw, size);
    else text->lost = 1;
}

/* Add a text as JSON, as `encode_basestring_ascii` makes it. */
static void add_quoted(Notes *self, Text *text, PyObject *name) {
    Py_ssize_t size = 0;
    const char *raw = PyUnicode_IS_ASCII(name) ? PyUnicode_AsUTF8AndSize(name, &size) : NULL;
    int simple = raw != NULL;
    for (Py_ssize_t i = 0; simple && i < size; i++) simple = raw[i] >= ' ' && raw[i] < 127 && raw[i] != '"' && raw[i] != '\\';
    if (simple) {
        add(text, "\"", 1);
        add(text, raw, size);
        add(text, "\"", 1);
    } else {
        PyObject *made = PyObject_CallOneArg(self->quoted, name);
        add_text(text, made);
        Py_XDECREF(made);
    }
}

/* Return a new reference to the name of a sample, NULL for what only Python can say. */
static PyObject *name_of(Notes *self, PyObject *index) {
    PyObject *name = NULL;
    if (self->names == Py_None) {
        name = PyObject_Str(index);
    } else if (PyList_CheckExact(self->held) || PyTuple_CheckExact(self->held)) {
        const Py_ssize_t at = PyLong_AsSsize_t(index);
        if (at >= 0 && at < PySequence_Fast_GET_SIZE(self->held)) {
            PyObject *entry = PySequence_Fast_GET_ITEM(self->held, at);
            if ((PyList_CheckExact(entry) || PyTuple_CheckExact(entry)) && PySequence_Fast_GET_SIZE(entry))
                entry = PySequence_Fast_GET_ITEM(entry, 0);
            if (PyUnicode_CheckExact(entry) && PyUnicode_GET_LENGTH(entry)) name = Py_NewRef(entry);
        }
        PyErr_Clear();
    }
    if (!name && self->names != Py_None) name = PyObject_CallOneArg(self->names, index);
    if (name && (!PyUnicode_CheckExact(name) || PyUnicode_GET_LENGTH(name) > LONGEST)) Py_CLEAR(name);
    return name;
}

/* Return a new list with the names of samples, NULL where one is unusual. */
static PyObject *names_of(Notes *self, PyObject *indices) {
    const Py_ssize_t count = PyList_GET_SIZE(indices);
    PyObject *names = PyList_New(count);
    for (Py_ssize_t i = 0; names && i < count; i++) {
        PyObject *index = i < PyList_GET_SIZE(indices) ? PyList_GET_ITEM(indices, i) : NULL; /* a name may run anything */
        PyObject *name = index && PyLong_CheckExact(index) ? name_of(self, index) : NULL;
        if (name) PyList_SET_ITEM(names, i, name);
        else Py_CLEAR(names);
    }
    return names;
}

static void put_number(unsigned char *at, uint32_t number) { memcpy(at, &number, sizeof number); }

static int put_part(unsigned char **to, const unsigned char *end, const void *a, Py_ssize_t more, const void *b, Py_ssize_t rest) {
    if (more < 0 || rest < 0 || end - *to < LENGTH + more + rest) return 0;
    put_number(*to, (uint32_t)(more + rest));
    memcpy(*to + LENGTH, a, more);
    memcpy(*to + LENGTH + more, b, rest);
    *to += LENGTH + more + rest;
    return 1;
}

/* Write states that stay, and their names before them; returns their bytes, 0 where only Python can. */
static uint32_t put_states(Notes *self, unsigned char *at, PyObject *still) {
    const unsigned char *end = at + self->batch_bytes / 2;
    unsigned char *to = at;
    PyObject *key, *state;
    Text names = {0};
    if (!PyDict_CheckExact(still)) return 0;
    for (Py_ssize_t i = 0; PyDict_Next(still, &i, &key, &state);) {
        if (!PyUnicode_CheckExact(key)) names.lost = 1;
        add(&names, names.size ? "," : "[", 1);
        if (!names.lost) add_quoted(self, &names, key);
    }
    add(&names, names.size ? "]" : "[]", names.size ? 1 : 2);
    int fine = !names.lost && put_part(&to, end, names.at, names.size, "", 0);
    PyMem_Free(names.at);
    for (Py_ssize_t i = 0; fine && PyDict_Next(still, &i, &key, &state);) {
        PyObject *words = state, *rest = NULL;
        if (PyTuple_CheckExact(state) && PyTuple_GET_SIZE(state) == 2)
            words = PyTuple_GET_ITEM(state, 0), rest = PyTuple_GET_ITEM(state, 1);
        fine = PyBytes_CheckExact(words) && (!rest || PyBytes_CheckExact(rest)) &&
               put_part(&to, end, PyBytes_AS_STRING(words), PyBytes_GET_SIZE(words), rest ? PyBytes_AS_STRING(rest) : "",
                        rest ? PyBytes_GET_SIZE(rest) : 0);
    }
    return fine ? (uint32_t)(to - at) : 0;
}

/* Say which batch is being loaded; tells whether that is done. */
static int put_batch(Notes *self, const char *order, size_t length, PyObject *states) {
    PyObject *still = PyTuple_GET_ITEM(states, 0), *moving = PyTuple_GET_ITEM(states, 1);
    const int side = 1 - (self->page[self->batch_at] & 1);
    unsigned char *at = self->page + self->batch_at + 8 + side * self->batch_bytes;
    Written *held = &self->written[side];
    if (self->failed) return 1;
    if (held->still != still) {
        Py_CLEAR(held->still); /* until they are written whole */
        if (!self->page || !(held->size = put_states(self, at + START, still))) return 0;
        held->check = crc32_of(0, at + START, held->size);
        held->still = Py_NewRef(still);
    }
    const int64_t more = PyBytes_GET_SIZE(moving);
    if (START + held->size + LENGTH + (int64_t)length + more > self->batch_bytes) return 0;
    unsigned char *told = at + START + held->size;
    put_number(told, (uint32_t)length);
    memcpy(told + LENGTH, order, length);
    memcpy(told + LENGTH + length, PyBytes_AS_STRING(moving), more);
    const uint32_t size = (uint32_t)(LENGTH + length + more), head[] = {held->size, held->check, size, crc32_of(0, told, size)};
    memcpy(at, head, sizeof head);
    __atomic_store_n(self->page + self->batch_at, (unsigned char)side, __ATOMIC_SEQ_CST);
    return 1;
}

/* Return a new Loaded, NULL with or without an error. */
static PyObject *loaded_of(Notes *self, PyObject *base, PyObject *states, PyObject *samples, PyObject *text) {
    static PyObject *zero, *unseen;
    if (!zero) zero = PyLong_FromLong(0);
    if (!unseen) unseen = PyLong_FromLong(-1);
    PyObject *made = zero && unseen ? self->loaded->tp_alloc(self->loaded, 0) : NULL;
    if (made && (PyObject_SetAttr(made, n_base, base) < 0 || PyObject_SetAttr(made, n_states, states) < 0 ||
                 PyObject_SetAttr(made, n_samples, samples) < 0 || PyObject_SetAttr(made, n_text, text) < 0 ||
                 PyObject_SetAttr(made, n_walk, zero) < 0 || PyObject_SetAttr(made, n_position, unseen) < 0))
        Py_CLEAR(made);
    return made;
}

/* begin(which): note the batch that is to be loaded, by the list of its indices or the number of samples of a stream before it;
   gives what is known of it, None where only Python can say */
static PyObject *notes_begin(Notes *self, PyObject *which) {
    PyObject *samples = NULL, *asked = NULL, *states = NULL, *base = NULL, *told = NULL, *made = NULL;
    Text text = {0};
    const int kind = PyLong_CheckExact(which) ? STREAM : MAP;
    if (!self->page || !self->prefix[kind] || self->owner != getpid()) Py_RETURN_NONE;
    if (kind == MAP && (!PyList_CheckExact(which) || !PyList_GET_SIZE(which))) Py_RETURN_NONE;
    if (!marks_now(self->marks)) Py_RETURN_NONE; /* before names are asked for, which would have to be twice */
    if (!(samples = kind == MAP ? names_of(self, which) : PyList_New(0)) || !(asked = PyObject_Repr(which))) goto done;
    if (!(states = Py_XNewRef(marks_now(self->marks))) || !self->page) goto done;
    add(&text, "\"samples\":[", 11);
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(samples); i++) {
        if (i) add(&text, ",", 1);
        add_quoted(self, &text, PyList_GET_ITEM(samples, i));
    }
    add(&text, "],\"order\":", 10);
    const size_t order = text.size;
    add_text(&text, self->prefix[kind]);
    add(&text, "\"", kind == MAP);
    add_text(&text, asked); /* numbers, commas and brackets */
    add(&text, "\"}" + (kind == STREAM), 2 - (kind == STREAM));
    if (text.lost || !self->page || !(base = PyDict_Copy(self->order[kind]))) goto done;
    if (PyDict_SetItem(base, kind == MAP ? n_indices : n_first, kind == MAP ? asked : which) < 0) goto done;
    if (!(told = PyUnicode_DecodeASCII(text.at, text.size, NULL))) goto done;
    if (put_batch(self, text.at + order, text.size - order, states)) made = loaded_of(self, base, states, samples, told);
done:
    PyMem_Free(text.at);
    Py_XDECREF(samples);
    Py_XDECREF(asked);
    Py_XDECREF(states);
    Py_XDECREF(base);
    Py_XDECREF(told);
    if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception)) return NULL; /* Ctrl-C while a name was asked for */
    PyErr_Clear(); /* Python meets it again */
    return made ? made : Py_NewRef(Py_None);
}

/* Say which sample is being loaded. */
static void put_sample(Notes *self, PyObject *name) {
    Py_ssize_t size = 0;
    PyObject *replaced = NULL;
    const char *raw = PyUnicode_Check(name) ? PyUnicode_AsUTF8AndSize(name, &size) : NULL;
    if (!raw) {
        PyErr_Clear();
        replaced = PyUnicode_Check(name) ? PyUnicode_AsEncodedString(name, "utf-8", "replace") : NULL;
        if (replaced) raw = PyBytes_AS_STRING(replaced), size = PyBytes_GET_SIZE(replaced);
        PyErr_Clear();
    }
    if (raw && self->page) {
        const int64_t room = self->sample_bytes - WHEN - COUNT;
        const uint16_t count = (uint16_t)(size < room ? size : room);
        const int side = 1 - (self->page[self->sample_at] & 1);
        unsigned char *at = self->page + self->sample_at + 8 + side * self->sample_bytes;
        struct timespec clock;
        clock_gettime(CLOCK_REALTIME, &clock);
        const double now = clock.tv_sec + 1e-9 * clock.tv_nsec;
        memcpy(at, &now, WHEN);
        memcpy(at + WHEN, &count, COUNT);
        memcpy(at + WHEN + COUNT, raw, count);
        memset(at + WHEN + COUNT + count, 0, room - count);
        __atomic_store_n(self->page + self->sample_at, (unsigned char)side, __ATOMIC_SEQ_CST);
    }
    Py_XDECREF(replaced);
}

/* sample(name): say which sample is being loaded */
static PyObject *notes_sample(Notes *self, PyObject *name) {
    if (self->owner == getpid()) put_sample(self, name);
    Py_RETURN_NONE;
}

/* Ask the data set for samples, each noted before it is loaded. */
static PyObject *items(Notes *self, PyObject *indices, PyObject *names) {
    PyObject *dataset = Py_NewRef(self->dataset), *found = PyList_New(0);
    for (Py_ssize_t i = 0; found && i < PyList_GET_SIZE(indices) && i < PyList_GET_SIZE(names); i++) {
        PyObject *index = Py_NewRef(PyList_GET_ITEM(indices, i));
        put_sample(self, PyList_GET_ITEM(names, i));
        PyObject *sample = PyObject_GetItem(dataset, index);
        Py_DECREF(index);
        if (!sample) self->at = i; /* loading may load */
        if (!sample || PyList_Append(found, sample) < 0) Py_CLEAR(found);
        Py_XDECREF(sample);
    }
    Py_DECREF(dataset);
    return found;
}

/* A sample could not be loaded: note its name, and leave the error as it is. */
static void refuse(Notes *self, PyObject *watched, PyObject *names) {
    PyObject *type, *value, *trace;
    if (PyErr_ExceptionMatches(PyExc_StopIteration)) return;
    PyErr_Fetch(&type, &value, &trace);
    PyObject *name = self->at < PyList_GET_SIZE(names) ? PyList_GET_ITEM(names, self->at) : NULL;
    PyObject *done = name ? PyObject_CallMethodOneArg(watched, n_refuse, name) : NULL;
    Py_XDECREF(done);
    PyErr_Clear();
    PyErr_Restore(type, value, trace);
}

/* fetch(indices): load a batch by its indices, in place of a Watched's __getitems__ */
static PyObject *notes_fetch(Notes *self, PyObject *indices) {
    PyObject *watched = self->watched ? PyObject_CallNoArgs(self->watched) : NULL; /* a weak reference: it has this method */
    if (!watched && !PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, "it has not been made");
    if (!watched) return NULL;
    PyObject *told = notes_begin(self, indices), *found = NULL, *names = NULL;
    if (told == Py_None) {
        found = PyObject_CallMethodOneArg(watched, n_load, indices);
    } else if (told && PyObject_SetAttr(watched, n_told, told) == 0 && PyObject_SetAttr(watched, n_fresh, Py_False) == 0 &&
               (names = PyObject_GetAttr(told, n_samples))) {
        found = items(self, indices, names);
        if (!found) refuse(self, watched, names);
    }
    Py_XDECREF(names);
    Py_XDECREF(told);
    Py_DECREF(watched);
    return found;
}

/* wrote(side, still, size, check): Python has written these states there */
static PyObject *notes_wrote(Notes *self, PyObject *args) {
    int side;
    PyObject *still;
    unsigned int size, check;
    if (!PyArg_ParseTuple(args, "iOII", &side, &still, &size, &check)) return NULL;
    if (side < 0 || side > 1 || size > (uint64_t)self->batch_bytes) {
        PyErr_SetString(PyExc_ValueError, "a page has two sides, and states fit into one");
        return NULL;
    }
    Py_XSETREF(self->written[side].still, Py_NewRef(still));
    self->written[side].size = size, self->written[side].check = check;
    Py_RETURN_NONE;
}

/* know(kind, order, prefix): what all batches have in common that are loaded by their indices (0), or from a stream (1) */
static PyObject *notes_know(Notes *self, PyObject *args) {
    int kind;
    PyObject *order, *prefix;
    if (!PyArg_ParseTuple(args, "iO!U", &kind, &PyDict_Type, &order, &prefix)) return NULL;
    if (kind != MAP && kind != STREAM) {
        PyErr_SetString(PyExc_ValueError, "there are two kinds of batches");
        return NULL;
    }
    Py_XSETREF(self->order[kind], Py_NewRef(order));
    Py_XSETREF(self->prefix[kind], Py_NewRef(prefix));
    Py_RETURN_NONE;
}

static int notes_init(Notes *self, PyObject *args, PyObject *unused) {
    PyObject *page, *marks_type, *marks, *loaded, *quoted, *names, *held, *watched, *dataset;
    long long at[4];
    if (self->view.obj || self->marks) {
        PyErr_SetString(PyExc_RuntimeError, "it has been made already");
        return -1;
    }
    if (!PyArg_ParseTuple(args, "O(LLLL)O!OO!OOOOO", &page, at, at + 1, at + 2, at + 3, &PyType_Type, &marks_type, &marks,
                          &PyType_Type, &loaded, &quoted, &names, &held, &watched, &dataset))
        return -1;
    if ((PyObject *)Py_TYPE(marks) != marks_type) {
        PyErr_SetString(PyExc_TypeError, "these are no Marks");
        return -1;
    }
    if (PyObject_GetBuffer(page, &self->view, PyBUF_WRITABLE) < 0) return -1;
    self->sample_at = at[0], self->sample_bytes = at[1], self->batch_at = at[2], self->batch_bytes = at[3];
    const int64_t size = self->view.len;
    if (self->sample_at < 0 || self->sample_bytes <= WHEN + COUNT || self->sample_bytes > UINT16_MAX || self->batch_at < 0 ||
        self->batch_bytes <= START + LENGTH || self->batch_bytes > size || self->sample_at > size - 8 - 2 * self->sample_bytes ||
        self->batch_at > size - 8 - 2 * self->batch_bytes) {
        PyBuffer_Release(&self->view);
        PyErr_SetString(PyExc_ValueError, "the page is too small for its samples and batches");
        return -1;
    }
    self->marks = (Marks *)Py_NewRef(marks);
    self->loaded = (PyTypeObject *)Py_NewRef(loaded);
    self->quoted = Py_NewRef(quoted);
    self->names = Py_NewRef(names);
    self->held = Py_NewRef(held);
    self->watched = Py_NewRef(watched);
    self->dataset = Py_NewRef(dataset);
    self->owner = getpid();
    self->page = self->view.buf;
    return 0;
}

static int notes_traverse(Notes *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->marks);
    Py_VISIT(self->loaded);
    Py_VISIT(self->quoted);
    for (int kind = 0; kind < KINDS; kind++) Py_VISIT(self->order[kind]);
    Py_VISIT(self->names);
    Py_VISIT(self->held);
    Py_VISIT(self->watched);
    Py_VISIT(self->dataset);
    for (int side = 0; side < 2; side++) Py_VISIT(self->written[side].still);
    return 0;
}

static int notes_clear(Notes *self) {
    self->page = NULL;
    Py_CLEAR(self->marks);
    Py_CLEAR(self->loaded);
    Py_CLEAR(self->quoted);
    for (int kind = 0; kind < KINDS; kind++) {
        Py_CLEAR(self->order[kind]);
        Py_CLEAR(self->prefix[kind]);
    }
    Py_CLEAR(self->names);
    Py_CLEAR(self->held);
    Py_CLEAR(self->watched);
    Py_CLEAR(self->dataset);
    for (int side = 0; side < 2; side++) Py_CLEAR(self->written[side].still);
    return 0;
}

static void notes_dealloc(Notes *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    notes_clear(self);
    if (self->view.obj) PyBuffer_Release(&self->view);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef notes_methods[] = {{"know", (PyCFunction)notes_know, METH_VARARGS, NULL},
                                      {"begin", (PyCFunction)notes_begin, METH_O, NULL},
                                      {"sample", (PyCFunction)notes_sample, METH_O, NULL},
                                      {"fetch", (PyCFunction)notes_fetch, METH_O, NULL},
                                      {"wrote", (PyCFunction)notes_wrote, METH_VARARGS, NULL},
                                      {NULL}};
static PyMemberDef notes_members[] = {{"failed", T_BOOL, offsetof(Notes, failed), 0, NULL},
                                      {NULL}};
static PyType_Slot notes_slots[] = {{Py_tp_methods, notes_methods},
                                    {Py_tp_members, notes_members},
                                    {Py_tp_init, notes_init},
                                    {Py_tp_dealloc, notes_dealloc},
                                    {Py_tp_traverse, notes_traverse},
                                    {Py_tp_clear, notes_clear},
                                    {Py_tp_doc, "Writes usual batches and samples into the page of a worker."},
                                    {0}};
PyType_Spec notes_spec = {"ocrlab.recording.quick.Notes", sizeof(Notes), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, notes_slots};
