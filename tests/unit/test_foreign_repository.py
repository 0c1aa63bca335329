"""A git repository that somebody sent is read, or refused in a line; none of its commands is run."""

import hashlib
import os
import subprocess
from pathlib import Path

import pytest
from joulecast.importers.repository import git_tree
from mlperf_fixtures import write_run

from joulecast.errors import JoulecastError
from joulecast.importers import sources
from joulecast.importers.mlperf import import_mlperf

WHO = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "protocol.file.allow=always")


def git(folder: Path, *words: str, given: bytes | None = None) -> str:
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    env |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    command = ["git", *WHO, "-C", str(folder), *words]
    return (
        subprocess.run(command, check=True, capture_output=True, env=env, input=given)
        .stdout.decode()
        .strip()
    )


@pytest.fixture
def sent(tmp_path: Path) -> Path:
    """A repository with two runs and nothing in its working tree."""
    work = tmp_path / "work"
    write_run(work / "ACME/results", "result_1")
    write_run(work / "ACME/results", "result_2", seed=2)
    git(tmp_path, "init", "-q", "-b", "main", "work")
    git(work, "add", ".")
    git(work, "commit", "-qm", "submission")
    git(work, "tag", "-a", "v1", "-m", "first")
    git(tmp_path, "clone", "-q", "--no-checkout", "work", "sent")
    return tmp_path / "sent"


def content_of(folder: Path) -> dict[str, str]:
    """Of every file below a folder, what it is and what it holds."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        holds = ""
        if path.is_file() and not path.is_symlink():
            holds = hashlib.sha256(path.read_bytes()).hexdigest()
        found[str(path)] = f"{status.st_mode:o} {status.st_mtime_ns} {holds}"
    return found


def blob_of(repository: Path, name: str) -> Path:
    """The loose object of a file of the commit."""
    found = git(repository, "rev-parse", f"HEAD:{name}")
    return repository / ".git/objects" / found[:2] / found[2:]


def configured(repository: Path, *settings: tuple[str, str]) -> None:
    for key, value in settings:
        git(repository, "config", key, value)


def without_an_object(repository: Path) -> None:
    """Leave out what a partial clone would fetch."""
    packs = repository / ".git/objects/pack"
    for pack in packs.glob("*.pack"):
        moved = pack.rename(repository.parent / pack.name)
        git(repository, "unpack-objects", "-q", given=moved.read_bytes())
    for rest in packs.iterdir():
        rest.unlink()
    blob_of(repository, "ACME/results/2xACME-Fast9000/resnet/power/result_1/node_0.txt").unlink()


def promisor(repository: Path, *settings: tuple[str, str]) -> None:
    without_an_object(repository)
    configured(
        repository,
        ("core.repositoryformatversion", "1"),
        ("extensions.partialClone", "origin"),
        ("remote.origin.promisor", "true"),
        *settings,
    )


def script(folder: Path, canary: Path) -> str:
    file = folder / "evil.sh"
    file.write_text(f"#!/bin/sh\ntouch {canary}\n")
    file.chmod(0o755)
    return str(file)


def uploadpack(repository: Path, canary: Path) -> None:
    promisor(repository, ("remote.origin.uploadpack", f"touch {canary}; git-upload-pack"))


def ext_transport(repository: Path, canary: Path) -> None:
    evil = script(repository, canary)
    promisor(repository, ("protocol.ext.allow", "always"), ("remote.origin.url", f"ext::{evil}"))


def ssh_command(repository: Path, canary: Path) -> None:
    evil = script(repository, canary)
    promisor(repository, ("core.sshCommand", evil), ("remote.origin.url", "ssh://example.org/x"))


def monitor_and_hooks(repository: Path, canary: Path) -> None:
    evil = script(repository, canary)
    hooks = repository / ".git/hooks"
    hooks.mkdir(exist_ok=True)
    for name in ("post-checkout", "post-index-change", "pre-auto-gc", "reference-transaction"):
        (hooks / name).write_text(f"#!/bin/sh\ntouch {canary}\n")
        (hooks / name).chmod(0o755)
    configured(
        repository,
        ("core.fsmonitor", evil),
        ("core.hooksPath", str(hooks)),
        ("core.pager", evil),
        ("core.alternateRefsCommand", evil),
        ("alias.ls-tree", f"!{evil}"),
        ("credential.helper", f"!{evil}"),
    )


def filters(repository: Path, canary: Path) -> None:
    evil = script(repository, canary)
    (repository / ".git/info").mkdir(exist_ok=True)
    (repository / ".git/info/attributes").write_text("* filter=evil diff=evil\n")
    for key in ("filter.evil.smudge", "filter.evil.clean", "filter.evil.process"):
        configured(repository, (key, evil))
    configured(repository, ("diff.evil.textconv", evil), ("filter.evil.required", "true"))


def endless_configuration(repository: Path, canary: Path) -> None:
    (repository / ".git/config").unlink()
    os.mkfifo(repository / ".git/config")


def borrowed_objects(repository: Path, canary: Path) -> None:
    info = repository / ".git/objects/info"
    info.mkdir(exist_ok=True)
    (info / "alternates").write_text(f"{repository.parent / 'work/.git/objects'}\n")


def elsewhere(repository: Path, canary: Path) -> None:
    evil = script(repository, canary)
    configured(repository, ("core.fsmonitor", evil))
    (repository / ".git").rename(repository.parent / "elsewhere")
    (repository / ".git").write_text("gitdir: ../elsewhere\n")


def linked_objects(repository: Path, canary: Path) -> None:
    (repository / ".git/objects").rename(repository.parent / "objects")
    (repository / ".git/objects").symlink_to(repository.parent / "objects")


def a_pipe_among_the_packs(repository: Path, canary: Path) -> None:
    os.mkfifo(repository / ".git/objects/pack/pack-1.idx")


def odd_refs(repository: Path, canary: Path) -> None:
    heads = repository / ".git/refs/heads"
    commit = git(repository, "rev-parse", "HEAD")
    for name in ("--upload-pack=x", "a..b", "a\nb", "b\udcff", "x.lock", "c:d", "$(touch PWNED)"):
        (heads / name).write_text(f"{commit}\n")
    (heads / "out").symlink_to("/etc/passwd")
    (heads / "loop").write_text("ref: refs/heads/loop\n")
    (heads / "up").write_text("ref: ../../../../etc/passwd\n")
    (repository / ".git/packed-refs").write_text(f"{commit} ../../evil\n^ \n{commit}\n")


def replaced_objects(repository: Path, canary: Path) -> None:
    commit = git(repository, "rev-parse", "HEAD")
    empty = git(repository, "commit-tree", "-m", "x", git(repository, "mktree", given=b""))
    git(repository, "replace", commit, empty)


READ = [monitor_and_hooks, filters, endless_configuration, odd_refs, replaced_objects]
WITH_A_GAP = [uploadpack, ext_transport, ssh_command]
REFUSED = {
    borrowed_objects: "borrows objects from elsewhere",
    elsewhere: "its `.git` points to .*elsewhere, which is not read; of a worktree",
    linked_objects: "has no folder of objects of its own",
    a_pipe_among_the_packs: "is a link, a pipe or a device among git's objects",
}


@pytest.mark.parametrize(
    "hostile", [*READ, *WITH_A_GAP, *REFUSED], ids=lambda hostile: hostile.__name__
)
def test_no_command_of_a_repository_is_run_and_nothing_is_written_to_it(
    hostile, sent, tmp_path, monkeypatch
):
    canary = tmp_path / "canary"
    hostile(sent, canary)
    before = content_of(sent)
    monkeypatch.chdir(tmp_path)
    if hostile in REFUSED:
        with pytest.raises(JoulecastError, match=REFUSED[hostile]) as refused:
            import_mlperf(sent, tmp_path / "out")
        assert str(sent) in str(refused.value) and "\n" not in str(refused.value)
    else:
        summary = import_mlperf(sent, tmp_path / "out")
        assert summary.runs == 2
        lost = [text for texts in summary.left_out.values() for text in texts]
        assert any("unreadable file" in text for text in lost) == (hostile in WITH_A_GAP)
    assert not canary.exists() and not list(tmp_path.rglob("PWNED"))
    assert content_of(sent) == before


def test_branch_tag_full_and_short_hash_name_a_revision(sent, tmp_path):
    commit = git(sent, "rev-parse", "HEAD")
    for revision in ("HEAD", "main", "origin/main", "origin", "v1", commit, commit[:8], "main~0"):
        with git_tree(sent, revision) as tree:
            assert tree.provenance["git commit"] == commit
            assert len(list(tree.paths())) == 6
    for revision in ("--help", "no-such", "0" * 40, "a\0b", "HEAD:ACME", "HEAD~7"):
        with (
            pytest.raises(JoulecastError, match="has no commit for the revision"),
            git_tree(sent, revision),
        ):
            pass


def test_a_repository_with_long_hashes_is_read(tmp_path):
    work = tmp_path / "long"
    write_run(work / "ACME/results")
    git(tmp_path, "init", "-q", "--object-format=sha256", "long")
    git(work, "add", ".")
    git(work, "commit", "-qm", "submission")
    assert import_mlperf(work, tmp_path / "out", revision="HEAD").runs == 1


def test_a_few_trees_that_name_billions_of_files_are_refused(sent, tmp_path, monkeypatch):
    monkeypatch.setattr("joulecast.importers.repository.MAX_FILES", 10_000)
    blob = git(sent, "hash-object", "-w", "--stdin", given=b"x")
    file = git(sent, "mktree", given=f"100644 blob {blob}\tresult_1.txt\n".encode())
    # Both with files at the bottom and with none.
    for inner in (file, git(sent, "mktree", given=b"")):
        for _ in range(9):
            lines = "".join(f"040000 tree {inner}\t{name}\n" for name in "abcdefghij")
            inner = git(sent, "mktree", given=lines.encode())
        commit = git(sent, "commit-tree", "-m", "bomb", inner)
        with pytest.raises(JoulecastError, match="more than 1,000,000 files"):
            import_mlperf(sent, tmp_path / "out", revision=commit)


def test_a_file_that_is_too_large_in_a_repository_is_not_unpacked(sent, monkeypatch):
    monkeypatch.setattr("joulecast.importers.repository.MAX_LOG_BYTES", 1000)
    with git_tree(sent, "main") as tree:
        name = next(path for path in tree.paths() if path.endswith("node_0.txt"))
        with pytest.raises(JoulecastError, match="MB, which no log should"):
            tree.read(name)


def test_pipes_devices_and_links_out_of_a_folder_are_not_read(tmp_path):
    place = write_run(tmp_path / "in/ACME/results", nodes=2)
    (place / "power/result_1/node_0.txt").unlink()
    os.mkfifo(place / "power/result_1/node_0.txt")
    secret = tmp_path / "secret.txt"
    secret.write_text("the password")
    (place / "power/result_1/node_1.txt").unlink()
    (place / "power/result_1/node_1.txt").symlink_to(secret)
    with pytest.raises(JoulecastError, match=r"is a pipe or a device.*is a link that leaves"):
        import_mlperf(tmp_path / "in", tmp_path / "out")
    assert not any(
        "password" in file.read_text(errors="replace") for file in tmp_path.glob("out/*/*.json")
    )


def test_a_folder_with_too_many_files_is_refused(tmp_path, monkeypatch):
    write_run(tmp_path / "in/ACME/results")
    monkeypatch.setattr(sources, "MAX_FILES", 2)
    with pytest.raises(JoulecastError, match="more than 2 files"):
        import_mlperf(tmp_path / "in", tmp_path / "out")


def test_names_that_are_no_text_or_too_long_become_names_of_records(tmp_path):
    results = tmp_path / "in" / ("s" * 200) / "results"
    write_run(results, "result_1", system="y" * 200, benchmark="b" * 200)
    write_run(results, "result_\udcff²", system="y" * 200, benchmark="b" * 200)
    summary = import_mlperf(tmp_path / "in", tmp_path / "out")
    assert summary.runs == 2 and len(list((tmp_path / "out").iterdir())) == 2
