"""What must not stand in anything that is shared: secrets, private addresses, and the names of a person and a machine.

    clean(value)      text, or texts in dicts and lists, with all of that replaced
    counted(value)    the same, and how many were replaced
    record(mapping)   a JSON record, clean, with that number in it as "redacted"
    is_secret(name)   whether a parameter or environment variable is named like a secret

Replaced are `(secret)`, `(WANDB_API_KEY)` for the value of that variable, `~` for this person's home, `(user)`,
`(host)` and `(address)`. Standard library only; the time grows with the length of a text and not faster.
"""

from __future__ import annotations

from ocrlab.redaction.clean import clean, counted, record
from ocrlab.redaction.secret_names import is_secret

__all__ = ["clean", "counted", "is_secret", "record"]
