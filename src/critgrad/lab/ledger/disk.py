"""On what kind of disk a file lies."""

from __future__ import annotations

import os
from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")
# File systems that several machines may have mounted at once.
_KINDS = (
    "9p afs beegfs ceph cifs gfs2 glusterfs gpfs lustre ncpfs nfs nfs4 ocfs2 orangefs prl_fs pvfs2 smb3 smbfs vboxsf virtiofs "
    "wekafs fuse.beegfs fuse.ceph fuse.gcsfuse fuse.glusterfs fuse.juicefs fuse.lustre fuse.rclone fuse.s3fs fuse.sshfs"
)
NETWORK = frozenset(_KINDS.split())


def kind_of(path: Path, mounts: Path | None = None) -> str:
    """The file system that a file lies on, or would; empty where the system does not say."""
    real = os.path.realpath(path)
    best, kind = -1, ""
    try:
        lines = (mounts or MOUNTS).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    for line in lines:
        head, dash, tail = line.partition(" - ")
        if not dash or len(head.split()) < 5:
            continue
        point = head.split()[4].replace("\\040", " ")
        inside = point == "/" or real == point or real.startswith(point + "/")
        if inside and len(point) >= best:  # of two on one another the later one counts
            best, kind = len(point), tail.split()[0]
    return kind


def on_network(path: Path) -> bool:
    """Whether other machines may see the same file."""
    return kind_of(path) in NETWORK
