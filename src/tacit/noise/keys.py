"""Who may know the noise? Secret keys: where they come from, where they are kept, and how they end.

Whoever holds the key of a run can compute its noise and subtract it, which undoes the privacy of everything the run
released. So a key comes from the operating system's entropy and lives in memory that can be wiped. It is written only
to a file of its own that nobody else can read, and never to a pickle, a checkpoint or printed text. It does not work in
a fork of the process that made it, and it is destroyed when the run ends.
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
    """A key file that must not be used: others can read it, it is not ours, or it is not a key."""


class Key(OneProcess):
    """A 256-bit secret key.

    Noise made from a key protects people only while nobody who sees the released values knows the key, and only if each
    (step, parameter) of a key is used for one release: two releases with the same noise differ by the data alone. So a
    forked process cannot use it (:class:`~tacit.noise.ForkError`), and it cannot be copied or pickled.

    Use :meth:`generate` to make a key, in a ``with`` block that destroys it at the end.

    Args:
        secret: 32 secret bytes, which are copied. Only for a key that you have already.
        repeatable: Whether several runs of a process may use the key, and so draw the same noise. Only for tests, and
            to compare runs on data that need no protection. Default: ``False``.

    Raises:
        ValueError: If the secret does not have 32 bytes.

    Example:
        >>> from tacit.noise import Key
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
        """Make a new key from the operating system's entropy."""
        return cls(fresh_bytes(_BYTES))

    def derive(self, purpose: str) -> Key:
        """The key for one purpose, by keyed BLAKE2b; the keys of two purposes tell nothing about each other.

        Args:
            purpose: A name, such as ``"noise"`` or ``"sampler"``.

        Returns:
            A key that is always the same for this key and purpose.

        Example:
            >>> key = Key(bytes(32))
            >>> key.derive("noise") == key.derive("sampler")
            False
        """
        return Key(self._digests(b"tacit purpose", [purpose.encode()])[0], repeatable=self.repeatable)

    def stream(self, purpose: str, step: int, parameter: int | str) -> Words:
        """The 256-bit ChaCha key of one purpose, step and parameter.

        Args:
            purpose: The kind of draw, such as ``"normal"``.
            step: The step of the run, at least 0 and below 2^64.
            parameter: The name or number of the parameter.

        Returns:
            Eight 32-bit words.

        Example:
            >>> Key(bytes(32)).stream("normal", 0, "weight").shape
            (8,)
        """
        words: Words = self.streams(purpose, step, [parameter])[0]
        return words

    def streams(self, purpose: str, step: int, parameters: Sequence[int | str]) -> Words:
        """:meth:`stream` for many parameters of one step.

        Args:
            purpose: The kind of draw, such as ``"normal"``.
            step: The step of the run, at least 0 and below 2^64.
            parameters: Names or numbers of the parameters.

        Returns:
            A row of eight 32-bit words for each parameter.

        Raises:
            ValueError: If ``step`` is out of range.

        Example:
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

        Example:
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
        """The file that the key was saved to or loaded from, or None."""
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
        """Write the key to a new file with mode 0600.

        Keep the file apart from checkpoints. :meth:`destroy` overwrites and removes it.

        Args:
            path: Where to write; nothing may exist there yet.

        Raises:
            FileExistsError: If there is a file at ``path``; it is never overwritten.
            ValueError: If the key has been destroyed.
            OSError: If this system cannot keep the file from other users.
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
        """Read a key that :meth:`save` wrote.

        Args:
            path: The key file.

        Returns:
            The key; destroying it removes the file too.

        Raises:
            KeyFileError: If another user owns, could read or could write the file, or if it is not a key file.
        """
        target = os.path.abspath(path)
        descriptor = os.open(target, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise KeyFileError(f"{target} is not a regular file. See: tacit explain key-file")
            if stat.S_IMODE(status.st_mode) & 0o077:
                mode = stat.S_IMODE(status.st_mode)
                raise KeyFileError(
                    f"{target} can be reached by other users (mode {mode:04o}): a key that others may have read "
                    "protects nobody. Make a new key or, if you are sure that nobody has read it, chmod 600 the file. "
                    "See: tacit explain key-file"
                )
            if hasattr(os, "geteuid") and status.st_uid != os.geteuid():
                raise KeyFileError(
                    f"{target} belongs to another user, who may know the key; make a key of your own. "
                    "See: tacit explain key-file"
                )
            content = bytearray(len(_MAGIC) + _BYTES + 1)
            size = file.readinto(content)
            if size != len(_MAGIC) + _BYTES or content[: len(_MAGIC)] != _MAGIC:
                raise KeyFileError(
                    f"{target} is not a tacit key file; give the path that key.save wrote. See: tacit explain key-file"
                )
        key = cls(memoryview(content)[len(_MAGIC) : size])  # type: ignore[arg-type]
        content[:] = bytes(len(content))
        key._path = target
        return key

    def destroy(self) -> None:
        """Wipe the key from memory; if it was saved or loaded, overwrite the file, then remove it.

        In a forked process only the copy in its memory is wiped: the file belongs to the process that made the key.

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
        """Finish what a :meth:`save` or :meth:`destroy` that was killed had begun; otherwise do nothing.

        Args:
            path: The key file.
        """
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
            "a tacit Key cannot be pickled or copied, so that it never ends up in a checkpoint or an exported model. "
            "Save it to a file of its own with key.save(path) and read it back with Key.load(path). "
            "See: tacit explain key-file"
        )

    __reduce_ex__ = __copy__ = __deepcopy__ = __getstate__ = _refuse
