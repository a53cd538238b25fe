/* A walk over a loader, as `Loop._batches` makes it in Python: an iterator that writes the record of each batch before it
   gives it away. Whatever is unusual is asked of the loop. */

#include "quick.h"

PyTypeObject *walk_type;
PyObject *n_begins, *n_ends, *n_left, *n_begin, *n_random, *n_snapshot;

typedef struct {
    PyObject_HEAD
    Quick *quick;
    PyObject *loop, *loader, *optimizer;
    PyObject *source;        /* gives the batches; NULL before the first */
    PyObject *told, *text;   /* of batches without indices the Loaded of the one at hand, and its text; else what returns it */
    PyObject *taken;         /* a list that begins with the number of batches that were taken */
    int64_t batches, walk;
    char counted, out, busy, ended; /* `told` is a Loaded; a batch is out; it is being asked for one; there are no more */
} Walk;

static int walk_clear(Walk *self) {
    Py_CLEAR(self->loop);
    Py_CLEAR(self->loader);
    Py_CLEAR(self->optimizer);
    Py_CLEAR(self->source);
    Py_CLEAR(self->told);
    Py_CLEAR(self->text);
    Py_CLEAR(self->taken);
    return 0;
}

static int walk_traverse(Walk *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->quick);
    Py_VISIT(self->loop);
    Py_VISIT(self->loader);
    Py_VISIT(self->optimizer);
    Py_VISIT(self->source);
    Py_VISIT(self->told);
    Py_VISIT(self->taken);
    return 0;
}

/* The micro-batch at hand is over, and the next one waited for or not. */
static int leaves(Walk *self, int waits) {
    Quick *quick = self->quick;
    self->out = 0;
    int stepped = quick_ends(quick, waits);
    if (stepped < 0) {
        PyObject *told = PyObject_CallMethodOneArg(self->loop, n_left, waits ? Py_True : Py_False);
        stepped = told ? PyObject_IsTrue(told) : -1;
        Py_XDECREF(told);
        if (stepped < 0) return -1;
    }
    quick->clean = stepped || self->optimizer == Py_None;
    quick->number += quick->clean; /* an optimiser's step, if the micro-batch that ends made one */
    return 0;
}

static void walk_finalize(Walk *self) { /* it was left in the middle */
    if (!self->out || !self->loop) return;
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    if (leaves(self, 0) < 0) PyErr_WriteUnraisable((PyObject *)self);
    PyErr_Restore(type, value, trace);
}

static void walk_dealloc(Walk *self) {
    PyTypeObject *type = Py_TYPE(self);
    if (PyObject_CallFinalizerFromDealloc((PyObject *)self) < 0) return;
    PyObject_GC_UnTrack(self);
    walk_clear(self);
    Py_CLEAR(self->quick);
    type->tp_free(self);
    Py_DECREF(type);
}

/* Ask the loop for what is walked over: (iterator, Loaded or what returns it, the Loaded's text or None, taken, walk). */
static int begins(Walk *self) {
    PyObject *source, *told, *text, *taken;
    long long walk;
    PyObject *made = PyObject_CallMethodOneArg(self->loop, n_begins, self->loader);
    if (!made) return -1;
    int fine = PyArg_ParseTuple(made, "OOOO!L", &source, &told, &text, &PyList_Type, &taken, &walk);
    if (fine) {
        self->source = Py_NewRef(source);
        self->told = Py_NewRef(told);
        self->text = Py_NewRef(text);
        self->taken = Py_NewRef(taken);
        self->walk = walk;
        self->counted = text != Py_None;
    }
    Py_DECREF(made);
    return fine ? 0 : -1;
}

static int counts_batch(Walk *self) {
    PyObject *number = PyLong_FromLongLong(++self->batches);
    return number ? PyList_SetItem(self->taken, 0, number) : -1;
}

/* Tell a Loaded which batch it is of, for what is done in Python. */
static int tells(Walk *self, PyObject *states) {
    PyObject *position = PyLong_FromLongLong(self->batches - 1);
    int fine = position && !PyObject_SetAttr(self->told, n_position, position) && !PyObject_SetAttr(self->told, n_states, states);
    Py_XDECREF(position);
    return fine ? 0 : -1;
}

/* Write the record of a batch that has come, `states` being those before it was loaded where no loader tells them. */
static int writes(Walk *self, PyObject *batch, PyObject *states) {
    Quick *quick = self->quick;
    const int64_t micro = ++quick->micro;
    PyObject *told = self->counted ? Py_NewRef(self->told) : PyObject_CallNoArgs(self->told);
    if (!told) return -1;
    int usual;
    if (self->counted) {
        Told known = {self->walk, self->batches - 1, quick->walks, states, self->text};
        usual = quick_write(quick, quick->number, micro, quick->epoch, self->optimizer, &known, batch);
        if (!usual && tells(self, states) < 0) goto failed;
    } else {
        usual = quick_told(quick, quick->number, micro, quick->epoch, self->optimizer, told, batch);
    }
    if (!usual) {
        PyObject *done = PyObject_CallMethodObjArgs(self->loop, n_begin, batch, told, NULL);
        if (!done) goto failed;
        Py_DECREF(done);
    }
    Py_DECREF(told);
    if (quick->clean && micro > quick->quiet) {
        PyObject *quiet = PyObject_CallMethodNoArgs(self->loop, n_snapshot);
        if (quiet) quick->quiet = PyLong_AsLongLong(quiet);
        Py_XDECREF(quiet);
        if (PyErr_Occurred()) return -1;
    }
    return 0;
failed:
    Py_DECREF(told);
    return -1;
}

static PyObject *fetched(Walk *self) {
    if (!self->source && begins(self) < 0) return NULL;
    if (self->out && leaves(self, 1) < 0) return NULL;
    PyObject *states = NULL;
    if (self->counted) {
        states = Py_XNewRef(marks_now(self->quick->marks));
        if (!states && !(states = PyObject_CallMethodNoArgs(self->loop, n_random))) return NULL;
    }
    PyObject *batch = PyIter_Next(self->source);
    if (batch && (counts_batch(self) < 0 || writes(self, batch, states) < 0)) Py_CLEAR(batch);
    Py_XDECREF(states);
    if (batch) {
        self->out = 1;
    } else if (!PyErr_Occurred()) {
        PyObject *done = PyObject_CallMethodNoArgs(self->loop, n_ends);
        Py_XDECREF(done);
    }
    return batch;
}

static PyObject *walk_next(Walk *self) {
    if (self->busy) { /* by another thread, or by the loader itself; of a generator Python says the same */
        PyErr_SetString(PyExc_ValueError, "the walk over these batches is being asked for one already");
        return NULL;
    }
    if (self->ended) return NULL;
    self->busy = 1;
    PyObject *batch = fetched(self);
    self->busy = 0;
    if (!batch) {
        self->ended = 1;
        Py_CLEAR(self->source);
    }
    return batch;
}

static PyObject *walk_close(Walk *self, PyObject *unused) {
    if (self->out && leaves(self, 0) < 0) return NULL;
    if (!self->busy) {
        self->ended = 1;
        Py_CLEAR(self->source);
    }
    Py_RETURN_NONE;
}

/* walk(loop, loader, optimizer): return an iterator over the batches of a loader, which begins when it is asked for the
   first; the learning rate is that of `optimizer`, None for none */
PyObject *quick_walk(Quick *self, PyObject *args) {
    PyObject *loop, *loader, *optimizer;
    if (!PyArg_ParseTuple(args, "OOO", &loop, &loader, &optimizer)) return NULL;
    if (!self->marks) {
        PyErr_SetString(PyExc_RuntimeError, "it has not been made");
        return NULL;
    }
    Walk *made = (Walk *)walk_type->tp_alloc(walk_type, 0);
    if (!made) return NULL;
    made->quick = (Quick *)Py_NewRef(self);
    made->loop = Py_NewRef(loop);
    made->loader = Py_NewRef(loader);
    made->optimizer = Py_NewRef(optimizer);
    return (PyObject *)made;
}

static PyMethodDef walk_methods[] = {{"close", (PyCFunction)walk_close, METH_NOARGS, NULL}, {NULL}};
static PyType_Slot walk_slots[] = {{Py_tp_iter, PyObject_SelfIter},
                                   {Py_tp_iternext, walk_next},
                                   {Py_tp_methods, walk_methods},
                                   {Py_tp_finalize, walk_finalize},
                                   {Py_tp_dealloc, walk_dealloc},
                                   {Py_tp_traverse, walk_traverse},
                                   {Py_tp_clear, walk_clear},
                                   {Py_tp_doc, "The batches of a loader, each written down before it is given away."},
                                   {0}};
PyType_Spec walk_spec = {"ocrlab.recording.quick.Walk", sizeof(Walk), 0,
                         Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION, walk_slots};
