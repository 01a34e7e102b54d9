"""A file that several processes hold in memory, and a record in it that is never torn.

    page 0    what the file is: magic, version, its size, and what it means, in words; then a CRC
    page 1    one byte that names the current slot, and two slots for the record
    the rest  cells: 64-bit floats for whoever needs more room than a record has

A record is written into the slot that is not current; then the one byte is turned. So a process
may be killed between any two stores, and the next one finds the old record or the new one. A
record also tells when and in which boot of the machine it was written, since the clock that all
processes share starts anew at boot. Every block of the file is allocated when it is made: a store
into a mapped hole would kill the process when the disk is full.

The lock is `flock`: the kernel drops it when its holder dies. It is only ever tried, never waited
for here, and it is no lock between threads: callers hold a lock of the process around it.

Invariants: under the lock the current slot holds a whole record; a file exists whole or not at
all; a file that is not ours is never written to.
"""

from __future__ import annotations

import os
import secrets
import stat
import struct
import sys
import time
import zlib
from contextlib import suppress
from typing import NamedTuple

from throttle.errors import FileRefused

try:
    import fcntl
    import mmap

    _EXCLUSIVE = fcntl.LOCK_EX | fcntl.LOCK_NB
except ImportError:  # said at construction, where somebody can read it
    fcntl = mmap = None  # type: ignore[assignment]

__all__ = ["Record", "StateFile", "boot_id"]

_MAGIC = b"throttle"
_VERSION = 1
_PAGE = 4096
_HEADER = struct.Struct("<8sIIQ")  # magic, version, length of the meaning, size of the file
_RECORD = struct.Struct("<QQ16sdd")  # serial, length of the body, boot, wall clock, shared clock
_CRC = struct.Struct("<I")
_SERIAL = struct.Struct("<Q")
_SLOTS = _PAGE + 64  # the byte that names the slot has a cache line of its own

#: Tries for the lock before a caller has to stand back. Its holder needs a few microseconds.
_TRIES = 12
#: Seconds after which an open file is compared with what lies at its path.
_RECHECK = 1.0


class Record(NamedTuple):
    """What the current slot holds."""

    boot: bytes
    wall: float
    """Epoch seconds at which it was written."""
    stamp: float
    """The same instant on the clock that the processes share."""
    body: bytes


def boot_id() -> bytes:
    """16 bytes that name this boot of the machine; zeros where the system does not tell."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return bytes.fromhex(file.read().strip().replace("-", ""))[:16]
    except (OSError, ValueError):
        return bytes(16)


class StateFile:
    """The file at `path`, made if there is none. One for each object and process.

    `meaning` – what the records mean, compared letter by letter; `body` – the longest record, in
    bytes; `cells` – how many floats of extra room; `first` – the record of a new file. FileRefused,
    or the OSError of the system, with nothing changed.
    """

    __slots__ = (
        "_body_size", "_checked", "_fd", "_first", "_identity", "_map", "_serial", "_size",
        "_slot_size", "boot", "cells", "meaning", "path",
    )  # fmt: skip

    def __init__(
        self, path: str | os.PathLike[str], meaning: str, body: int, cells: int, first: Record
    ) -> None:
        self._fd = -1
        if fcntl is None:
            raise OSError(f"a shared file needs flock and mmap, which {sys.platform} has not")
        self.path = os.fsdecode(path)
        self.meaning = meaning
        self._body_size = body
        self._slot_size = -(-(_RECORD.size + body + _CRC.size) // 64) * 64
        start = self._cells_start()
        self._size = start + 8 * cells
        self._first = first
        self.boot = first.boot
        self._serial = -1
        self._open()

    def _cells_start(self) -> int:
        return -(-(_SLOTS + 2 * self._slot_size) // _PAGE) * _PAGE

    # ---------------------------------------------------------------- opening

    def _open(self) -> None:
        """Open or make the file, and see that it is ours."""
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            fd = os.open(self.path, flags)
        except FileNotFoundError:
            self._create()
            fd = os.open(self.path, flags)
        try:
            found = os.fstat(fd)
            self._verify(fd, found)
            memory = mmap.mmap(fd, self._size)
        except BaseException:
            os.close(fd)
            raise
        self.close()
        self._fd, self._map = fd, memory
        self._identity = (found.st_dev, found.st_ino, self._size)
        self.cells = memoryview(memory)[self._cells_start() :].cast("d")
        self._serial, self._checked = -1, time.monotonic()

    def _create(self) -> None:
        """Make the file in one step: whole under another name, then given its own."""
        folder, name = os.path.split(self.path)
        draft = os.path.join(folder, f".{name}.{secrets.token_hex(6)}")
        try:
            fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            try:
                image = self._image()
                while image:
                    image = image[os.write(fd, image) :]
                os.fsync(fd)
            finally:
                os.close(fd)
            with suppress(FileExistsError):  # another process was first: the same, if it is ours
                os.link(draft, self.path)
        except OSError as error:
            raise type(error)(error.errno, error.strerror, self.path) from None
        finally:
            with suppress(OSError):
                os.unlink(draft)

    def _image(self) -> memoryview:
        image = bytearray(self._size)
        header = self._header()
        image[: len(header)] = header
        record = self._packed(0, *self._first)
        image[_SLOTS : _SLOTS + len(record)] = record
        return memoryview(image)

    def _header(self) -> bytes:
        meaning = self.meaning.encode()
        header = _HEADER.pack(_MAGIC, _VERSION, len(meaning), self._size) + meaning
        if len(header) > _PAGE - _CRC.size:
            raise ValueError(f"limiter has too long a description: {self.meaning!r}")
        return header + _CRC.pack(zlib.crc32(header))

    def _verify(self, fd: int, found: os.stat_result) -> None:
        if not stat.S_ISREG(found.st_mode):
            raise FileRefused(self.path, "is not a regular file")
        head = os.pread(fd, _PAGE, 0)
        if not head.startswith(_MAGIC) or len(head) < _HEADER.size:
            raise FileRefused(self.path, f"({found.st_size} bytes) holds no state of a limiter")
        _, version, length, size = _HEADER.unpack_from(head)
        if version != _VERSION:
            raise FileRefused(self.path, f"has version {version} of the format, not {_VERSION}")
        if found.st_size != size:
            raise FileRefused(self.path, f"is torn: {found.st_size} bytes of {size}")
        end = _HEADER.size + length
        if head[end : end + 4] != _CRC.pack(zlib.crc32(head[:end])):
            raise FileRefused(self.path, "is torn: its header does not add up")
        meaning = head[_HEADER.size : end].decode(errors="replace")
        if meaning != self.meaning:
            raise FileRefused(self.path, f"is the state of {meaning}, not of {self.meaning}")
        if size != self._size:
            raise FileRefused(self.path, f"has {size} bytes, not {self._size}")

    def reopen(self) -> None:
        """Let go of what a parent process opened: a lock on it would be the parent's as well."""
        self._open()

    def close(self) -> None:
        """Unmap and close. Safe to do twice."""
        if self._fd >= 0:
            self.cells.release()
            self._map.close()
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        self.close()

    # ---------------------------------------------------------------- the lock

    def try_lock(self) -> bool:
        """Take the lock if it is to be had within some tens of microseconds."""
        if self._fd < 0:
            raise ValueError(f"{self.path!r}: this limiter is closed")
        if time.monotonic() - self._checked > _RECHECK:
            self._check()
        for _ in range(_TRIES):
            try:
                fcntl.flock(self._fd, _EXCLUSIVE)
            except BlockingIOError:
                os.sched_yield()
                continue
            # To touch what was cut off from a mapped file kills the process.
            if os.lseek(self._fd, 0, os.SEEK_END) == self._size:
                return True
            self.unlock()
            self._check()
        return False

    def unlock(self) -> None:
        """Let go of the lock. Nothing happens if it is not held."""
        if self._fd >= 0:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def _check(self) -> None:
        """Follow the path: a file that was removed is made again, and all meet in the new one."""
        try:
            found = os.stat(self.path)
        except FileNotFoundError:
            found = None
        if found is None or (found.st_dev, found.st_ino, found.st_size) != self._identity:
            self._open()
        self._checked = time.monotonic()

    # ---------------------------------------------------------------- the record; under the lock

    def read(self) -> Record | None:
        """The record, if it is another one than was last read or written here. Else None."""
        memory = self._map
        current = memory[_PAGE]
        if current > 1:
            raise FileRefused(self.path, f"is torn: there is no slot {current}")
        at = _SLOTS + current * self._slot_size
        if _SERIAL.unpack_from(memory, at)[0] == self._serial:
            return None
        record = self._unpacked(at)
        if record is None:
            raise FileRefused(self.path, "is torn: its record does not add up")
        return record

    def _unpacked(self, at: int) -> Record | None:
        memory = self._map
        serial, length, boot, wall, stamp = _RECORD.unpack_from(memory, at)
        if length > self._body_size:
            return None
        end = at + _RECORD.size + length
        if _CRC.unpack_from(memory, end)[0] != zlib.crc32(memory[at:end]):
            return None
        self._serial = serial
        return Record(boot, wall, stamp, memory[at + _RECORD.size : end])

    def write(self, wall: float, stamp: float, body: bytes) -> None:
        """Replace the record. Cut off anywhere, the next reader finds the old or the new one."""
        memory = self._map
        other = 1 - memory[_PAGE]
        self._serial += 1
        packed = self._packed(self._serial, self.boot, wall, stamp, body)
        at = _SLOTS + other * self._slot_size
        memory[at : at + len(packed)] = packed
        memory[_PAGE] = other

    @staticmethod
    def _packed(serial: int, boot: bytes, wall: float, stamp: float, body: bytes) -> bytes:
        record = _RECORD.pack(serial, len(body), boot, wall, stamp) + body
        return record + _CRC.pack(zlib.crc32(record))

    def forget(self) -> None:
        """Read anew next time: what was made of the record cannot be trusted."""
        self._serial = -1
