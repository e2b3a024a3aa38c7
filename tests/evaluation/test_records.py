import subprocess
import sys

import pytest

from trl_dara.evaluation.records import (
    append_records,
    check_settings,
    keep_settings,
    only_writer,
    read_records,
    read_settings,
    replace_file,
)


def test_records_come_back_in_order(tmp_path):
    file = tmp_path / "folder" / "records.jsonl"
    assert read_records(file) == []
    append_records(file, [{"id": 1, "text": "two\nlines"}, {"id": 2, "text": "lone \ud800, \u2028 and \0"}])
    append_records(file, [])
    append_records(file, [{"id": 3}])
    assert read_records(file) == [
        {"id": 1, "text": "two\nlines"},
        {"id": 2, "text": "lone \ud800, \u2028 and \0"},
        {"id": 3},
    ]


@pytest.mark.parametrize("torn", [b'{"id": 2, "te', b'{"id": 2}', b'"' + b"x" * 200_000])
def test_a_line_without_its_end_is_not_read_and_makes_room(tmp_path, torn):
    file = tmp_path / "records.jsonl"
    append_records(file, [{"id": 1}])
    complete = file.read_bytes()
    file.write_bytes(complete + torn)
    assert read_records(file) == [{"id": 1}]
    append_records(file, [{"id": 2, "text": "again"}])
    assert file.read_bytes() == complete + b'{"id": 2, "text": "again"}\n'


def test_a_file_of_nothing_but_a_torn_line(tmp_path):
    file = tmp_path / "records.jsonl"
    file.write_bytes(b'{"id"')
    append_records(file, [{"id": 1}])
    assert read_records(file) == [{"id": 1}]


@pytest.mark.parametrize("line", [b"{'id': 2}", b"[1]", b""])
def test_a_damaged_line_is_named(tmp_path, line):
    file = tmp_path / "records.jsonl"
    file.write_bytes(b'{"id": 1}\n' + line + b'\n{"id": 3}\n')
    with pytest.raises(ValueError, match=r"records.jsonl, line 2 is no JSON"):
        read_records(file)


def test_settings_of_before_or_an_error_that_names_both(tmp_path):
    file = tmp_path / "settings.json"
    settings = {"model": "a", "sampling": {"n": 2, "temperature": 0.6}, "sizes": (1, 2)}
    check_settings(file, settings)
    assert not file.exists()
    keep_settings(file, settings)
    keep_settings(file, settings)
    other = {"model": "b", "sampling": {"n": 2, "temperature": 1.0}, "sizes": (1, 2), "new": 5}
    with pytest.raises(ValueError) as error:
        keep_settings(file, other)
    for difference in (
        "`model` was 'a' and is now 'b'",
        "`sampling.temperature` was 0.6 and is now 1.0",
        "`new` was None and is now 5",
    ):
        assert difference in str(error.value)
    assert "sizes" not in str(error.value) and "`sampling.n`" not in str(error.value)
    keep_settings(file, settings)


def test_damaged_settings_are_named(tmp_path):
    (tmp_path / "settings.json").write_text('{"model": ')
    for use in (read_settings, lambda file: check_settings(file, {"model": "a"})):
        with pytest.raises(ValueError, match="settings.json is no JSON"):
            use(tmp_path / "settings.json")


def test_a_second_process_is_refused_until_the_first_is_gone(tmp_path):
    program = (
        "import sys\n"
        "from trl_dara.evaluation.records import only_writer\n"
        "with only_writer(sys.argv[1]):\n"
        "    print('in', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    folder = tmp_path / "new"
    first = subprocess.Popen(
        [sys.executable, "-c", program, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert first.stdout.readline() == "in\n"
    with pytest.raises(ValueError, match="Another process is writing to .*new"):
        with only_writer(folder):
            pass
    first.kill()
    first.communicate()
    with only_writer(folder):
        append_records(folder / "records.jsonl", [{"id": 1}])


def test_a_file_is_replaced_whole(tmp_path):
    # The process dies at the moment the new content is complete but not yet in place
    file = tmp_path / "summary.json"
    replace_file(file, "old")
    program = (
        "import os, signal, sys\n"
        "from trl_dara.evaluation import records\n"
        "records.os.replace = lambda *paths: os.kill(os.getpid(), signal.SIGKILL)\n"
        "records.replace_file(sys.argv[1], 'new' * 1000)\n"
    )
    assert subprocess.run([sys.executable, "-c", program, str(file)]).returncode == -9
    assert file.read_text() == "old"
    replace_file(file, "new")
    assert file.read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]
