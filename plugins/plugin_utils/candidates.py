# Copyright: the llmetal developers
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the resolve stage found to exist: package versions and model files."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ansible_collections.llmetal.inference.plugins.plugin_utils import model_reader
from ansible_collections.llmetal.inference.plugins.plugin_utils.versions import branch_of, upstream

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ansible_collections.llmetal.inference.plugins.module_utils.errors import LlmetalError
    from ansible_collections.llmetal.inference.plugins.plugin_utils.hub import Metadata
    from ansible_collections.llmetal.inference.plugins.plugin_utils.model_shape import ModelShape


@dataclass(frozen=True)
class Snapshot:
    """A model folder that was read, or why it could not be."""

    revision: str = ""
    files: tuple[Mapping[str, Any], ...] = ()
    architectures: tuple[str, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""
    fix: str = ""
    """What to do about the error."""
    metadata: Metadata | None = None
    """What was read of a model that is on no host yet."""
    shape: ModelShape | None = None
    """What that model is."""

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(int(row["size"]) for row in self.files)


@dataclass(frozen=True)
class Candidates:
    """Answers of package sources and model folders."""

    packages: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The versions of each package, newest first."""
    asked: bool = True
    """Whether package sources were asked at all; where not, versions are unresolved."""
    models: Mapping[str, Snapshot] = field(default_factory=dict)

    def newest(self, package: str) -> str | None:
        """The newest version of a package."""
        return next(iter(self.packages.get(package, ())), None)

    def releases(self, package: str) -> dict[str, str]:
        """The upstream releases of a package, newest first, each with its newest full version."""
        found: dict[str, str] = {}
        for version in self.packages.get(package, ()):
            found.setdefault(upstream(version), version)
        return found

    def closest(self, package: str, release: str) -> str | None:
        """The version of a package for a driver release: the same, else the branch's, else any."""
        releases = self.releases(package)
        if release in releases:
            return releases[release]
        mine = [v for up, v in releases.items() if branch_of(up) == branch_of(release)]
        return mine[0] if mine else self.newest(package)


def parse(raw: Mapping[str, Any] | None) -> Candidates:
    """Read the result of the resolve stage; None stands for a host that was not asked.

    Without the key `packages`, package sources were not asked; without a model, its folder was not.
    """
    data = raw or {}
    return Candidates(
        asked="packages" in data,
        packages={
            str(name): tuple(str(row["version"]) for row in rows)
            for name, rows in (data.get("packages") or {}).items()
        },
        models={str(name): _snapshot(row) for name, row in (data.get("models") or {}).items()},
    )


def _snapshot(row: Mapping[str, Any]) -> Snapshot:
    if row.get("error"):
        return Snapshot(error=str(row["error"]), fix=str(row.get("fix") or ""))
    if row.get("metadata") is not None:
        return _of_metadata(row["metadata"], row["shape"])
    return Snapshot(
        revision=str(row["revision"]),
        files=tuple({k: one[k] for k in ("path", "size", "sha256")} for one in row["files"]),
        architectures=tuple(row.get("architectures") or ()),
        config=dict(row.get("config") or {}),
    )


def of_metadata(metadata: Metadata) -> dict[str, Any]:
    """The answer about a model that is on no host yet: made once, for however many hosts."""
    shape = model_reader.shape_of(metadata.config, metadata.tensors, metadata.weight_bytes)
    return {"metadata": metadata, "shape": shape}


def of_error(error: LlmetalError) -> dict[str, Any]:
    """The answer about a model that cannot be read."""
    why = "; ".join(part for part in (error.what, error.why) if part)
    return {"error": f"{error.where}: {why}", "fix": error.fix}


def _of_metadata(metadata: Metadata, shape: ModelShape) -> Snapshot:
    names = metadata.config.get("architectures")
    return Snapshot(
        revision=metadata.revision or "",
        architectures=tuple(map(str, names)) if isinstance(names, list) else (),
        config=metadata.config,
        metadata=metadata,
        shape=shape,
    )
