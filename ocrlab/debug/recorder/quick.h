/* What quick.c, marks.c, stage.c, walk.c, notes.c and quick_module.c share. */

#ifndef OCRLAB_QUICK_H
#define OCRLAB_QUICK_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

enum { MANY = 256, SLOT = 128, SIDES = 16 }; /* steps between two drains at the most, bytes of a slot before its payload, states that are known */
enum { COPIES = 12, MARK = 32, WORDS = 2496 }; /* words that are kept for reuse, bytes of a region at the most, of the words of a generator */
enum { PYTHON, NUMPY, TORCH, GENERATORS, GAUSS = GENERATORS, HEAD, TAIL, REGIONS }; /* regions: position and some words of each; NumPy's second Gaussian; what a draw of torch moves by itself */
enum { BLOCK = 16, BLOCK_BYTES = 2560, FRESH = 48 }; /* bytes of a block before its words, and of all; blocks filled since the last unusual step, from which on the states of that are told anew */

/* Where the random generators of this process stand, and the states that were read when they stood there. */
typedef struct {
    PyObject_HEAD
    const unsigned char *at[REGIONS];
    Py_ssize_t size[REGIONS];
    unsigned char kept[REGIONS][MARK];
    const char *words[GENERATORS]; /* NULL where nobody knows where they lie */
    PyObject *copies[COPIES];     /* of earlier words, to be written over where nobody else holds them */
    int newest;                   /* of them */
    PyObject *holder, *generator; /* np.random's, and what it drew from when it was looked at */
    PyObject *twister, *gauss;    /* random's, and the second Gaussian that waited in it then */
    PyObject *states;
} Marks;

/* Return the states of now (borrowed), NULL without an error where somebody has to ask the generators. */
PyObject *marks_now(Marks *self);

/* States of generators that stay, as records hold them, and how many bytes follow that move. */
typedef struct {
    PyObject *still, *raw;
    Py_ssize_t more;
} Side;

/* Words of a generator, and the block of the ring that has them. */
typedef struct {
    PyObject *words;
    int64_t number;
} Block;

/* What writes the records of usual steps into the ring of a Writer. */
typedef struct {
    PyObject_HEAD
    Py_buffer view;
    unsigned char *page; /* NULL once it is closed */
    int64_t slots, first, slot_bytes, room, large_at, blocks_at, blocks, phase_at, count_at, block_at, together;
    int data, forward, backward, optimiser; /* the numbers of these phases */
    Marks *marks;
    PyObject *cuda, *tensor, *walks; /* vars(torch.cuda), torch.Tensor, the base of a batch that has no indices */
    PyObject *otherwise, *behind;    /* what is called before a step that is no usual one, and behind one with a closure */
    PyObject *measure;               /* gives the text's beginning with the memory of now, and until when that holds */
    char noted;                      /* there is something to drain */
    char in_step, stepped;           /* between a record and its backward; an optimiser has stepped since the record */
    char closing;                    /* an optimiser is making a step with a closure, which makes the gradients */
    char clean;                      /* no gradient waits: the last micro-batch ended with a step, or there was none */
    int64_t micro, number, epoch;    /* the micro-batch at hand from 0, the optimiser's step and the epoch it is in */
    int64_t quiet;                   /* micro-batch up to which no walk needs to ask for a snapshot */
    int ready, learns;               /* may the next step be a usual one; is it looked at whether it learns */
    Side now, past;                  /* the states of the last record, and those before torch had new words */
    PyObject *head;                  /* the text's beginning as a record holds it */
    Side sides[SIDES];               /* those that a batch may have been loaded with */
    int known, filled;               /* of them; blocks since the last unusual step */
    Block told[FRESH];               /* these */
    double until;                    /* when the memory is to be measured again, in seconds since 1970 */
    int64_t due, walk;               /* the micro-batch of the next look at what is learned, the walk of the last */
    PyObject *optimizer, *model, *witness; /* the only one, the module that must train or None, a weight with a gradient */
    int64_t batches, steps;                /* since the last drain, as all that follows */
    int losses, drawn;
    double loss[MANY], rate[MANY];
    PyObject *indices[MANY];
} Quick;

/* What is known of a batch that has left its loader, all borrowed. */
typedef struct {
    int64_t walk, position;
    PyObject *base, *states, *text;
} Told;

int quick_write(Quick *self, int64_t number, int64_t micro, int64_t epoch, PyObject *optimizer, const Told *told, PyObject *batch);
int quick_told(Quick *self, int64_t number, int64_t micro, int64_t epoch, PyObject *optimizer, PyObject *told, PyObject *batch);
int quick_ends(Quick *self, int waits);
void quick_say(Quick *self, int phase);
PyObject *quick_stage(Quick *self, PyObject *args);
PyObject *quick_walk(Quick *self, PyObject *args);
PyObject *quick_stepped(Quick *self, PyObject *const *args, Py_ssize_t count);
PyObject *quick_begin(Quick *self, PyObject *const *args, Py_ssize_t count);
PyObject *quick_loss(Quick *self, PyObject *value);
PyObject *quick_wait(Quick *self, PyObject *unused);
PyObject *quick_nameless(Quick *self, PyObject *batch);
PyObject *quick_stepping(Quick *self, PyObject *const *args, Py_ssize_t count);

extern PyType_Spec marks_spec, stage_spec, walk_spec, notes_spec;
extern PyTypeObject *stage_type, *walk_type;
extern uint32_t crc_table[256];
uint32_t crc32_of(uint32_t crc, const unsigned char *at, int64_t size); /* as zlib.crc32 */
extern PyObject *n_names[GENERATORS], *n_gauss, *n_base, *n_states, *n_text, *n_walk, *n_position, *n_generator, *n_initialized, *n_item, *n_is_cuda,
    *n_groups, *n_lr, *n_training, *n_grad, *n_indices, *n_begins, *n_ends, *n_left, *n_begin, *n_random, *n_snapshot, *n_closure,
    *n_samples, *n_first, *n_told, *n_fresh, *n_load, *n_refuse; /* interned names of attributes and keys */

#endif
