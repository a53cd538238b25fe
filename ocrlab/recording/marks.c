/* Where the random generators of this process stand: what generators.py reads in Python, while nothing but torch's has
   moved. */

#include "quick.h"

#include <string.h>

PyObject *n_generator, *n_torch;

static int marks_clear(Marks *self) {
    Py_CLEAR(self->holder);
    Py_CLEAR(self->generator);
    Py_CLEAR(self->states);
    return 0;
}

static int marks_traverse(Marks *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->holder);
    Py_VISIT(self->generator);
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

/* keep(regions, holder, generator, states, words): (address, bytes) of each region as it is now, with the states it stands
   for, and where the words of torch's lie, 0 where nobody knows */
static PyObject *marks_keep(Marks *self, PyObject *args) {
    PyObject *regions, *holder, *generator, *states;
    unsigned long long words;
    if (!PyArg_ParseTuple(args, "O!OOO!K", &PyTuple_Type, &regions, &holder, &generator, &PyTuple_Type, &states, &words))
        return NULL;
    if (PyTuple_GET_SIZE(states) != 2 || !PyBytes_CheckExact(PyTuple_GET_ITEM(states, 1))) {
        PyErr_SetString(PyExc_TypeError, "states are those that stay, and bytes that move");
        return NULL;
    }
    marks_clear(self);
    self->words = (const char *)(uintptr_t)words;
    for (int i = 0; i < REGIONS; i++) {
        unsigned long long at;
        PyObject *region = PyTuple_GetItem(regions, i);
        if (!region || !PyArg_ParseTuple(region, "Kn", &at, &self->size[i])) return NULL;
        if (self->size[i] < 0 || self->size[i] > MARK) {
            PyErr_SetString(PyExc_ValueError, "a region is no mark");
            return NULL;
        }
        self->at[i] = (const unsigned char *)(uintptr_t)at;
        memcpy(self->kept[i], self->at[i], self->size[i]);
    }
    self->holder = Py_NewRef(holder);
    self->generator = Py_NewRef(generator);
    self->states = Py_NewRef(states);
    Py_RETURN_NONE;
}

static PyObject *marks_drop(Marks *self, PyObject *unused) {
    marks_clear(self);
    Py_RETURN_NONE;
}

/* Return a new reference to the words that torch's generator has now. They are written over earlier ones: between two steps
   of a training malloc() takes 30 us to find room for so many. */
static PyObject *words_of(Marks *self) {
    int at = (self->newest + 1) % COPIES;
    for (int i = 0; i < COPIES && self->copies[at] && Py_REFCNT(self->copies[at]) > 1; i++) at = (at + 1) % COPIES;
    self->newest = at;
    if (!self->copies[at] || Py_REFCNT(self->copies[at]) > 1)
        Py_XSETREF(self->copies[at], PyBytes_FromStringAndSize(NULL, TORCH_BYTES));
    if (self->copies[at]) memcpy(PyBytes_AS_STRING(self->copies[at]), self->words, TORCH_BYTES);
    return Py_XNewRef(self->copies[at]);
}

/* Return a new reference to states that stay, with the words that torch's generator has now; NULL where they are none to
   read. */
static PyObject *renewed(Marks *self) {
    PyObject *old = PyTuple_GET_ITEM(self->states, 0);
    PyObject *held = self->words && PyDict_CheckExact(old) ? PyDict_GetItemWithError(old, n_torch) : NULL;
    if (!held || !PyTuple_CheckExact(held)) return NULL; /* it is kept in one piece */
    PyObject *still = PyDict_Copy(old), *words = words_of(self);
    PyObject *state = words ? Py_BuildValue("(Ny#)", words, "", (Py_ssize_t)0) : NULL;
    if (!still || !state || PyDict_SetItem(still, n_torch, state) < 0) Py_CLEAR(still);
    Py_XDECREF(state);
    return still;
}

PyObject *marks_now(Marks *self) {
    if (!self->states) return NULL;
    PyObject *generator = PyObject_GetAttr(self->holder, n_generator);
    if (!generator) {
        PyErr_Clear();
        return NULL;
    }
    int same = generator == self->generator;
    Py_DECREF(generator);
    int moved = REGIONS; /* the first region that has */
    for (int i = REGIONS; i-- > 0;)
        if (memcmp(self->at[i], self->kept[i], self->size[i])) moved = i;
    if (!same || moved < TORCH) return NULL;
    if (moved == REGIONS) return self->states;
    PyObject *still = moved == TORCH ? renewed(self) : Py_NewRef(PyTuple_GET_ITEM(self->states, 0));
    if (!still) {
        PyErr_Clear();
        return NULL;
    }
    for (int i = TORCH; i < REGIONS; i++) memcpy(self->kept[i], self->at[i], self->size[i]);
    PyObject *moving = PyBytes_FromStringAndSize(NULL, self->size[3] + self->size[4]);
    if (!moving) goto failed;
    memcpy(PyBytes_AsString(moving), self->kept[3], self->size[3]);
    memcpy(PyBytes_AsString(moving) + self->size[3], self->kept[4], self->size[4]);
    PyObject *states = PyTuple_Pack(2, still, moving);
    Py_DECREF(moving);
    if (!states) goto failed;
    Py_DECREF(still);
    Py_SETREF(self->states, states);
    return states;
failed:
    Py_DECREF(still);
    PyErr_Clear();
    marks_clear(self);
    return NULL;
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
                                    {Py_tp_doc, "The states of the generators, as long as nothing but torch's has moved."},
                                    {0}};
PyType_Spec marks_spec = {"ocrlab.recording.quick.Marks", sizeof(Marks), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
                                 marks_slots};
