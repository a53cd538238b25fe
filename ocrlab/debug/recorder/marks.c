/* Where the random generators of this process stand: what generators.py reads in Python, where it knows how they lie in
   memory. */

#include "quick.h"

#include <string.h>

PyObject *n_generator, *n_gauss, *n_names[GENERATORS];

static int marks_clear(Marks *self) {
    Py_CLEAR(self->holder);
    Py_CLEAR(self->generator);
    Py_CLEAR(self->twister);
    Py_CLEAR(self->gauss);
    Py_CLEAR(self->states);
    return 0;
}

static int marks_traverse(Marks *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->holder);
    Py_VISIT(self->generator);
    Py_VISIT(self->twister);
    Py_VISIT(self->gauss);
    Py_VISIT(self->states);
    return 0;
}

static void marks_dealloc(Marks *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    marks_clear(self);
    for (int i = 0; i < COPIES; i++) Py_CLEAR(self->copies[i]);
    type->tp_free(self);
    Py_DECREF(type);
}

/* keep(regions, words, holder, generator, twister, gauss, states): (address, bytes) of each region as it is now, the address of
   the words of each generator, 0 where nobody knows it, and the states that all this stands for */
static PyObject *marks_keep(Marks *self, PyObject *args) {
    PyObject *regions, *holder, *generator, *twister, *gauss, *states;
    unsigned long long words[GENERATORS];
    if (!PyArg_ParseTuple(args, "O!(KKK)OOOOO!", &PyTuple_Type, &regions, words, words + 1, words + 2, &holder, &generator, &twister,
                          &gauss, &PyTuple_Type, &states))
        return NULL;
    if (PyTuple_GET_SIZE(states) != 2 || !PyBytes_CheckExact(PyTuple_GET_ITEM(states, 1))) {
        PyErr_SetString(PyExc_TypeError, "states are those that stay, and bytes that move");
        return NULL;
    }
    marks_clear(self);
    for (int i = 0; i < GENERATORS; i++) self->words[i] = (const char *)(uintptr_t)words[i];
    for (int i = 0; i < REGIONS; i++) {
        unsigned long long at;
        PyObject *region = PyTuple_GetItem(regions, i);
        if (!region || !PyArg_ParseTuple(region, "Kn", &at, &self->size[i])) return NULL;
        if (self->size[i] < 0 || self->size[i] > MARK || (i < GENERATORS && self->size[i] && self->size[i] != MARK)) {
            PyErr_SetString(PyExc_ValueError, "a region is no mark");
            return NULL;
        }
        self->at[i] = (const unsigned char *)(uintptr_t)at;
        memcpy(self->kept[i], self->at[i], self->size[i]);
    }
    self->holder = Py_NewRef(holder);
    self->generator = Py_NewRef(generator);
    self->twister = Py_NewRef(twister);
    self->gauss = Py_NewRef(gauss);
    self->states = Py_NewRef(states);
    Py_RETURN_NONE;
}

static PyObject *marks_drop(Marks *self, PyObject *unused) {
    marks_clear(self);
    Py_RETURN_NONE;
}

/* Return a new reference to the words that a generator has now. They are written over earlier ones: between two steps of a
   training malloc() takes 30 us to find room for so many. */
static PyObject *words_of(Marks *self, int which) {
    int at = (self->newest + 1) % COPIES;
    for (int i = 0; i < COPIES && self->copies[at] && Py_REFCNT(self->copies[at]) > 1; i++) at = (at + 1) % COPIES;
    self->newest = at;
    if (!self->copies[at] || Py_REFCNT(self->copies[at]) > 1)
        Py_XSETREF(self->copies[at], PyBytes_FromStringAndSize(NULL, WORDS));
    if (self->copies[at]) memcpy(PyBytes_AS_STRING(self->copies[at]), self->words[which], WORDS);
    return Py_XNewRef(self->copies[at]);
}

/* Return a new reference to what a generator's state has beside its words: position, whether a second Gaussian waits, that. Of
   torch all this is told by itself. */
static PyObject *rest_of(Marks *self, int which, PyObject *gauss) {
    char rest[4 + 1 + 8];
    const unsigned char *position = self->at[which] + (which == PYTHON ? 0 : MARK - 4), *second = self->at[GAUSS];
    double value = 0.0;
    int waits = 0;
    if (which == TORCH) return PyBytes_FromStringAndSize("", 0);
    if (which == PYTHON && gauss != Py_None) {
        value = PyFloat_AsDouble(gauss);
        waits = 1;
        if (value == -1.0 && PyErr_Occurred()) return NULL;
    } else if (which == NUMPY) {
        memcpy(&waits, second, sizeof waits);
        memcpy(&value, second + 8, sizeof value);
    }
    memcpy(rest, position, 4);
    rest[4] = (char)(waits != 0);
    memcpy(rest + 5, &value, 8);
    return PyBytes_FromStringAndSize(rest, sizeof rest);
}

/* Put the state that a generator has now into states that stay; tells whether it could. */
static int renew(Marks *self, PyObject *still, int which, PyObject *gauss) {
    PyObject *held = PyDict_GetItemWithError(still, n_names[which]), *words, *rest, *state;
    if (!held || !PyTuple_CheckExact(held) || PyTuple_GET_SIZE(held) != 2 || !self->words[which]) return 0; /* it is kept in one piece */
    if (which == NUMPY && !self->size[GAUSS]) return 0;
    const int at = which == PYTHON ? 4 : 0, size = which == TORCH ? MARK : MARK - 4; /* of a mark, the words */
    const int same = !memcmp(self->at[which] + at, self->kept[which] + at, size);
    words = same ? Py_NewRef(PyTuple_GET_ITEM(held, 0)) : words_of(self, which);
    rest = words ? rest_of(self, which, gauss) : NULL;
    state = rest ? PyTuple_Pack(2, words, rest) : NULL;
    Py_XDECREF(words);
    Py_XDECREF(rest);
    const int done = state && !PyDict_SetItem(still, n_names[which], state);
    Py_XDECREF(state);
    return done;
}

/* Return new states in place of those that are known, of which some have `moved`; NULL where somebody has to ask. */
static PyObject *moved_on(Marks *self, const int *moved, PyObject *gauss) {
    PyObject *still = PyTuple_GET_ITEM(self->states, 0), *moving = NULL, *states = NULL;
    const int stays = !moved[PYTHON] && !moved[NUMPY] && !moved[TORCH];
    if (!PyDict_CheckExact(still) || !(still = stays ? Py_NewRef(still) : PyDict_Copy(still))) return NULL;
    for (int i = 0; i < GENERATORS; i++)
        if (moved[i] && !renew(self, still, i, gauss)) goto done;
    if (!(moving = PyBytes_FromStringAndSize(NULL, self->size[HEAD] + self->size[TAIL]))) goto done;
    memcpy(PyBytes_AS_STRING(moving), self->at[HEAD], self->size[HEAD]);
    memcpy(PyBytes_AS_STRING(moving) + self->size[HEAD], self->at[TAIL], self->size[TAIL]);
    states = PyTuple_Pack(2, still, moving);
done:
    Py_DECREF(still);
    Py_XDECREF(moving);
    return states;
}

PyObject *marks_now(Marks *self) {
    if (!self->states) return NULL;
    int moved[REGIONS], any = 0;
    PyObject *states = NULL, *generator = PyObject_GetAttr(self->holder, n_generator);
    PyObject *gauss = generator ? PyObject_GetAttr(self->twister, n_gauss) : NULL;
    if (!gauss || generator != self->generator || !self->states) goto done;
    for (int i = 0; i < REGIONS; i++) moved[i] = memcmp(self->at[i], self->kept[i], self->size[i]) != 0;
    moved[PYTHON] |= gauss != self->gauss;
    moved[NUMPY] |= moved[GAUSS];
    for (int i = 0; i < REGIONS; i++) any |= moved[i];
    if (!any) {
        states = self->states;
    } else if ((states = moved_on(self, moved, gauss))) {
        for (int i = 0; i < REGIONS; i++) memcpy(self->kept[i], self->at[i], self->size[i]);
        Py_SETREF(self->gauss, Py_NewRef(gauss));
        Py_SETREF(self->states, states);
    }
done:
    Py_XDECREF(generator);
    Py_XDECREF(gauss);
    PyErr_Clear();
    return states;
}

static PyObject *marks_states(Marks *self, PyObject *unused) {
    PyObject *states = marks_now(self);
    return Py_NewRef(states ? states : Py_None);
}

static PyMethodDef marks_methods[] = {{"keep", (PyCFunction)marks_keep, METH_VARARGS, NULL},
                                      {"drop", (PyCFunction)marks_drop, METH_NOARGS, NULL},
                                      {"states", (PyCFunction)marks_states, METH_NOARGS, NULL},
                                      {NULL}};
static PyType_Slot marks_slots[] = {{Py_tp_methods, marks_methods},
                                    {Py_tp_dealloc, marks_dealloc},
                                    {Py_tp_traverse, marks_traverse},
                                    {Py_tp_clear, marks_clear},
                                    {Py_tp_doc, "The states of the generators, read where they lie."},
                                    {0}};
PyType_Spec marks_spec = {"ocrlab.recording.quick.Marks", sizeof(Marks), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
                                 marks_slots};
