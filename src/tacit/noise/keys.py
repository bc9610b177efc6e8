"""Who may know the noise? Secret keys: where they come from, where they are kept, and how they end.

Whoever holds the key of a run can compute its noise and subtract it, which undoes the privacy of everything the run
released. A key therefore comes from the operating system's entropy, lives in memory that can be wiped, is written only
to a file of its own that nobody else can read, is never part of a pickle, a checkpoint or a printed text, is of no use
in a fork of the process that made it, and is destroyed when the run ends.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import hmac
import os
import stat
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from tacit.noise import process
from tacit.noise.entropy import fresh_bytes
from tacit.noise.process import OneProcess

if TYPE_CHECKING:
    from tacit.noise.stream import Words

_MAGIC = b"tacit secret k1\n"
#: What is added to the name of a key file while it is being destroyed.
_GONE = ".gone"
#: A key file that is being written.
_NEW = ".new"
#: What a file system without second names for a file answers.
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}
_BYTES = 32
_MAX_STEP = 2**64
#: Fingerprints of the keys that runs of this process use, each with its run; the oldest are forgotten.
_claimed: dict[str, weakref.ref[Any]] = {}
_REMEMBERED = 1 << 16


class KeyFileError(OSError):
    """A key file that must not be used: readable by others, not ours, or not a key."""


class Key(OneProcess):
    """A 256-bit secret key.

    Noise made from a key protects people only while nobody who sees the released values knows the key, and only if each
    (step, parameter) of a key is used for one release: two releases with the same noise differ by the data alone. So a
    forked process cannot use it (:class:`~tacit.noise.process.ForkError`).

    >>> with Key.generate() as key:
    ...     sampler = key.derive("sampler")
    ...     print(key)
    <Key fingerprint ...>
    >>> key.destroyed
    True
    """

    __slots__ = ("_path", "_secret", "repeatable")

    def __init__(self, secret: bytes | bytearray, *, repeatable: bool = False) -> None:
        """Takes a copy of 32 secret bytes; use :meth:`generate` unless you have a key already."""
        if len(secret) != _BYTES:
            raise ValueError(f"a key has {_BYTES} bytes, not {len(secret)}")
        self._secret = bytearray(secret)
        self._path: str | None = None
        self.repeatable = repeatable

    @classmethod
    def generate(cls) -> Key:
        """A new key from the operating system's entropy."""
        return cls(fresh_bytes(_BYTES))

    def derive(self, purpose: str) -> Key:
        """The key for one purpose ("noise", "sampler", …): keyed BLAKE2b, so one tells nothing about another.

        >>> key = Key(bytes(32))
        >>> key.derive("noise") == key.derive("sampler")
        False
        """
        return Key(self._digests(b"tacit purpose", [purpose.encode()])[0], repeatable=self.repeatable)

    def stream(self, purpose: str, step: int, parameter: int | str) -> Words:
        """The 256-bit ChaCha key, as eight 32-bit words, of one purpose, step and parameter.

        >>> Key(bytes(32)).stream("normal", 0, "weight").shape
        (8,)
        """
        words: Words = self.streams(purpose, step, [parameter])[0]
        return words

    def streams(self, purpose: str, step: int, parameters: Sequence[int | str]) -> Words:
        """:meth:`stream` for many parameters of one step: a row for each.

        >>> key = Key(bytes(32))
        >>> bool((key.streams("normal", 7, ["weight", 3])[1] == key.stream("normal", 7, 3)).all())
        True
        """
        if not 0 <= step < _MAX_STEP:
            raise ValueError(f"step must be at least 0 and below 2**64, not {step}")
        # Each part carries its type and length, so no two different triples have the same encoding.
        label = purpose.encode()
        start = len(label).to_bytes(8, "little") + label + int(step).to_bytes(8, "little")
        labels = [start + (b"s" + p.encode() if isinstance(p, str) else b"i%d" % int(p)) for p in parameters]
        found = self._digests(b"tacit stream", labels)
        return np.frombuffer(b"".join(found), dtype="<u4").astype(np.uint32).reshape(-1, _BYTES // 4)

    def fingerprint(self) -> str:
        """A public name of the key (64 bits of keyed BLAKE2b), for cards and logs; it tells nothing about the noise.

        >>> Key(bytes(32)).fingerprint() == Key(bytes(32)).fingerprint()
        True
        """
        return self._digests(b"tacit name", [b""])[0][:8].hex()

    def claim(self, run: object, *, trusted: bool = False) -> None:
        """Note that a run uses this key; refuse it to every other run of this process, unless it is repeatable.

        Args:
            run: The run that is about to draw from the key.
            trusted: Whether the run is known to repeat no noise: it made the key itself, or continues the run that used
                the key before and so makes the same releases.

        Raises:
            ValueError: If another run of this process uses the key, or used it.

        Example:
            >>> class Run: pass
            >>> first, second, key = Run(), Run(), Key.generate()
            >>> key.claim(first)
            >>> key.claim(second)
            Traceback (most recent call last):
            ValueError: another run of this process uses this key, or used it: ...
        """
        name, mine = self.fingerprint(), weakref.ref(run)
        if trusted:
            _claimed[name] = mine
        holder = _claimed.setdefault(name, mine)  # one operation: of two threads one is first
        if holder() is not run and not self.repeatable:
            raise ValueError(
                "another run of this process uses this key, or used it: two runs with the same noise reveal how their "
                "data differ. Give each run a key of its own, or leave key= out. To continue a run, give its "
                "checkpoint=. To repeat one on purpose, as a test does, make the key with Key(secret, repeatable=True)"
            )
        if len(_claimed) > _REMEMBERED:
            _claimed.pop(next(iter(_claimed)), None)

    @property
    def path(self) -> str | None:
        """The file that the key was saved to or read from."""
        return self._path

    def reveal(self) -> bytes:
        """The secret itself, for the other ranks of the same run."""
        self.check_process()
        return bytes(self._secret)

    def _digests(self, domain: bytes, messages: Sequence[bytes]) -> list[bytes]:
        # Asked at every step, and so without a call where the answer is yes: is this the process that made the key?
        if self._process != (os.getpid(), process.forks):
            self.check_process()
        if not self._secret:
            raise ValueError("this key has been destroyed")
        secret = self._secret
        return [hashlib.blake2b(m, digest_size=_BYTES, key=secret, person=domain).digest() for m in messages]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the key to a new file with mode 0600. An existing file is never overwritten (``FileExistsError``).

        Keep the file apart from checkpoints. :meth:`destroy` overwrites and removes it.
        """
        self.check_process()
        if self.destroyed:
            raise ValueError("this key has been destroyed")
        if not hasattr(os, "fchmod"):
            raise OSError(
                errno.ENOTSUP,
                "this system cannot keep a key's file from other users, so checkpoints need Linux or macOS; "
                "train without checkpoint= here",
            )
        target = os.path.abspath(path)
        self.sweep(target)
        draft = target + _NEW
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), 0o600)
        try:
            try:
                os.fchmod(descriptor, 0o600)  # a umask can only remove bits, an inherited ACL could add them
                os.write(descriptor, _MAGIC + self._secret)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            # A second name for the whole file: whoever looks after a kill finds the whole key or none, and unlike a
            # rename this fails where the name is taken.
            try:
                os.link(draft, target)
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                if os.path.lexists(target):
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target) from None
                os.rename(draft, target)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(draft)
        self._path = target

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Key:
        """Reads a key written by :meth:`save`; refuses a file that somebody else owns, could read or could write."""
        target = os.path.abspath(path)
        descriptor = os.open(target, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise KeyFileError(f"{target} is not a regular file")
            if stat.S_IMODE(status.st_mode) & 0o077:
                mode = stat.S_IMODE(status.st_mode)
                raise KeyFileError(
                    f"{target} can be reached by other users (mode {mode:04o}): a key that others may have read "
                    "protects nobody. Make a new key, or, if you are sure that nobody read it, chmod 600 the file"
                )
            if hasattr(os, "geteuid") and status.st_uid != os.geteuid():
                raise KeyFileError(f"{target} belongs to another user")
            content = bytearray(len(_MAGIC) + _BYTES + 1)
            size = file.readinto(content)
            if size != len(_MAGIC) + _BYTES or content[: len(_MAGIC)] != _MAGIC:
                raise KeyFileError(f"{target} is not a tacit key file")
        key = cls(memoryview(content)[len(_MAGIC) : size])  # type: ignore[arg-type]
        content[:] = bytes(len(content))
        key._path = target
        return key

    def destroy(self) -> None:
        """Wipes the key from memory; where it was saved or loaded, overwrites the file, then removes it.

        In a forked process only the copy in its memory goes: the file is for the process that made the key.

        Copies that the operating system, a copy-on-write file system, a flash disk or a backup kept are out of reach.
        """
        self._secret[:] = bytes(len(self._secret))
        del self._secret[:]
        path, self._path = self._path, None
        if path is None or self.forked:
            return
        try:
            # First out of the way: whoever looks after a kill finds the whole key or none, never half a one.
            os.replace(path, path + _GONE)
        except FileNotFoundError:
            return
        self.sweep(path)

    @staticmethod
    def sweep(path: str | os.PathLike[str]) -> None:
        """Finishes what a :meth:`save` or :meth:`destroy` that was killed had begun; else does nothing."""
        target = os.path.abspath(path)
        for left in (target + _NEW, target + _GONE):
            try:
                descriptor = os.open(left, os.O_WRONLY | getattr(os, "O_NOFOLLOW", 0))
            except FileNotFoundError:
                continue
            try:
                # A draft that has its final name already is the key itself: only the second name goes.
                if left.endswith(_GONE) or os.fstat(descriptor).st_nlink == 1:
                    os.write(descriptor, os.urandom(len(_MAGIC) + _BYTES))
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)
            os.unlink(left)

    @property
    def destroyed(self) -> bool:
        """Whether the key has been wiped."""
        return not self._secret

    def __enter__(self) -> Key:
        return self

    def __exit__(self, *_: object) -> None:
        self.destroy()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Key):
            return NotImplemented
        return hmac.compare_digest(self._secret, other._secret)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        if self.destroyed or self.forked:
            return "<Key destroyed>" if self.destroyed else "<Key of another process>"
        return f"<Key fingerprint {self.fingerprint()}>"

    def _refuse(self, *_: Any) -> NoReturn:
        raise TypeError(
            "a tacit Key is never pickled or copied, so that it cannot end up in a checkpoint or an exported model; "
            "save it to a file of its own with key.save(path) and read it back with Key.load(path)"
        )

    __reduce_ex__ = __copy__ = __deepcopy__ = __getstate__ = _refuse
