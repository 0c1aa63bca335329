"""What a record says of its host."""

from joulecast.runs.provenance import gpus_in_words, nvidia_gpus


def test_the_driver_names_the_gpus(tmp_path):
    assert nvidia_gpus(tmp_path) == []
    for bus in ("0000:00:06.0", "0000:00:07.0"):
        folder = tmp_path / "gpus" / bus
        folder.mkdir(parents=True)
        text = "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 35\nBus Location: \t 0000:00:06.0\n"
        (folder / "information").write_text(text)
    names = nvidia_gpus(tmp_path)
    assert names == 2 * ["NVIDIA H100 80GB HBM3"]
    assert gpus_in_words({"gpus": names}) == ", 2 x NVIDIA H100 80GB HBM3"
    assert gpus_in_words({}) == ""
